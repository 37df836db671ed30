"""The class of transformers that each task is exported to, and what the two must agree on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from bertpt.batch import Batch
from bertpt.tasks.task import Facts


class Counterpart(ABC):
    """A task's head in transformers."""

    architecture: ClassVar[str]
    auto_class: ClassVar[str]
    pipeline_tag: ClassVar[str]

    def fault(self, facts: Facts) -> str | None:
        """Why a run cannot be exported; ``None``: it can."""
        return None

    def exported(self, facts: Facts) -> Facts:
        """The facts of the part of the model that is exported."""
        return facts

    def note(self, facts: Facts) -> str | None:
        """What is left out, for people; ``None``: nothing."""
        return None

    @abstractmethod
    def config(self, facts: Facts) -> dict[str, Any]:
        """Keys of ``config.json`` beside those of the encoder."""

    @abstractmethod
    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Outputs of our model."""

    @abstractmethod
    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """The same of theirs; ``tokens`` is the mask [B, L]."""

    @abstractmethod
    def kind(self, facts: Facts) -> str:
        """What the model does, for its card."""

    @abstractmethod
    def example(self, facts: Facts) -> Iterator[str]:
        """Lines of Python that use the export."""


def named(labels: Sequence[str]) -> dict[str, Any]:
    """``id2label`` and ``label2id``."""
    return {
        "id2label": {str(index): name for index, name in enumerate(labels)},
        "label2id": {name: index for index, name in enumerate(labels)},
    }


class SequenceClassification(Counterpart):
    """Classes, or one number, of a text or a pair."""

    architecture = "BertForSequenceClassification"
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"

    def fault(self, facts: Facts) -> str | None:
        """The deeper head has no place there."""
        if facts["head"]["kind"] != "deep":
            return None
        return (
            f"its head is deep (dense, ReLU, dropout), which {self.architecture} has no place for; train with"
            " head.kind=linear to export"
        )

    def config(self, facts: Facts) -> dict[str, Any]:
        """Labels and the kind of problem."""
        names = facts["labels"] or ["LABEL_0"]  # transformers' own name for the number of a regression
        problem = "regression" if facts["regression"] else "single_label_classification"
        return named(names) | {"problem_type": problem}

    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Logits [B, labels]."""
        return {"logits": model(batch)}

    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """Logits [B, labels]."""
        return {"logits": output.logits}

    def kind(self, facts: Facts) -> str:
        """Regression, or the labels."""
        kind = "regression" if facts["regression"] else f"{facts['task']}: {', '.join(facts['labels'])}"
        return f"{kind}{' (pairs of texts)' if facts['pair'] else ''}"

    def example(self, facts: Facts) -> Iterator[str]:
        """``pipeline``."""
        text = '{"text": "...", "text_pair": "..."}' if facts["pair"] else '"..."'
        yield from ["from transformers import pipeline", ""]
        yield f'print(pipeline("{self.pipeline_tag}", model="DIRECTORY")({text}))'


class TokenClassification(Counterpart):
    """A tag for each word, on its first piece."""

    architecture = "BertForTokenClassification"
    auto_class = "AutoModelForTokenClassification"
    pipeline_tag = "token-classification"

    def exported(self, facts: Facts) -> Facts:
        """Without the CRF, which has no place there."""
        return facts | {"head": facts["head"] | {"crf": False}}

    def note(self, facts: Facts) -> str | None:
        """The CRF."""
        if not facts["head"]["crf"]:
            return None
        return (
            f"the scores of neighbouring tags (CRF) are left out, for {self.architecture} has no place for them: it"
            " takes the best tag of each word; `bertpt predict` uses them"
        )

    def config(self, facts: Facts) -> dict[str, Any]:
        """Tags."""
        return named(facts["labels"])

    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Logits [T, tags]."""
        return {"logits": model(batch)}

    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """Logits [T, tags]."""
        return {"logits": output.logits[tokens]}

    def kind(self, facts: Facts) -> str:
        """The tags."""
        what = "named entities (strict IOB2)" if facts["entities"] else "a tag for each word"
        return f"{what}: {', '.join(facts['labels'])}; the tag of a word is that of its first piece"

    def example(self, facts: Facts) -> Iterator[str]:
        """``pipeline``."""
        how = ', aggregation_strategy="first"' if facts["entities"] else ""
        yield from ["from transformers import pipeline", ""]
        yield f'print(pipeline("{self.pipeline_tag}", model="DIRECTORY"{how})("..."))'


class QuestionAnswering(Counterpart):
    """Where an answer begins and ends."""

    architecture = "BertForQuestionAnswering"
    auto_class = "AutoModelForQuestionAnswering"
    pipeline_tag = "question-answering"

    def config(self, facts: Facts) -> dict[str, Any]:
        """Nothing more."""
        return {}

    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Logits [T] of begin and end."""
        start, end = model(batch).unbind(-1)
        return {"start_logits": start, "end_logits": end}

    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """Logits [T] of begin and end."""
        return {"start_logits": output.start_logits[tokens], "end_logits": output.end_logits[tokens]}

    def kind(self, facts: Facts) -> str:
        """Extractive, perhaps without an answer."""
        return f"extractive question answering{' (or no answer)' if facts['version_2'] else ''}"

    def example(self, facts: Facts) -> Iterator[str]:
        """The best span of one row: transformers 5 has no pipeline for it."""
        yield from ["import torch", "from transformers import AutoModelForQuestionAnswering, AutoTokenizer", ""]
        yield 'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")'
        yield 'model = AutoModelForQuestionAnswering.from_pretrained("DIRECTORY").eval()'
        yield 'question, context = "...", "..."'
        yield f'row = tokenizer(question, context, truncation="only_second", max_length={facts["max_length"]},'
        yield '                return_offsets_mapping=True, return_tensors="pt")'
        yield 'offsets = row.pop("offset_mapping")[0]'
        yield 'inside = row["token_type_ids"][0].bool() & (offsets[:, 1] > 0)  # tokens of the context'
        yield "with torch.inference_mode():"
        yield "    output = model(**row)"
        yield "scores = output.start_logits[0][:, None] + output.end_logits[0]"
        yield f"allowed = torch.ones_like(scores).triu().tril({facts['max_answer_length'] - 1}).bool()"
        yield 'scores[~(allowed & inside & inside[:, None])] = float("-inf")'
        yield "start, end = divmod(int(scores.argmax()), len(offsets))"
        yield "print(context[offsets[start][0] : offsets[end][1]])"
        if facts["version_2"]:
            threshold = facts["null_score_threshold"]
            yield "null = float(output.start_logits[0, 0] + output.end_logits[0, 0])  # the score of no answer"
            yield f"print(null - float(scores.max()) > {threshold})  # whether there is none"


class SentenceScoring(Counterpart):
    """A score for each sentence, at its [CLS] or as a mean over its tokens."""

    architecture = "BertForTokenClassification"
    auto_class = "AutoModelForTokenClassification"
    pipeline_tag = "token-classification"

    def config(self, facts: Facts) -> dict[str, Any]:
        """One label."""
        return named(["IN_SUMMARY"])

    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Logits of all tokens [T]."""
        return {"logits": model(batch)}

    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """Logits of all tokens [T]."""
        return {"logits": output.logits[tokens].squeeze(-1)}

    def kind(self, facts: Facts) -> str:
        """Length and how the output is read."""
        size = f"{facts['k']} sentences" if facts["share"] is None else f"{facts['share']:.0%} of the sentences"
        score = "the one logit at each [CLS] is the score of its sentence, those at other tokens mean nothing"
        if facts.get("pooling") == "mean":
            score = "the score of a sentence is the mean of the logits of its tokens, [CLS] and [SEP] among them"
        return (
            f"extractive summarization ({size}). Rows are `[CLS] sentence [SEP] [CLS] sentence [SEP] ...`, with token"
            f" types 0, 1, 0 ... by sentence and at most {facts['max_length']} tokens; {score}."
            " The sentences of the highest scores, in the order of the article, are the summary"
        )

    def example(self, facts: Facts) -> Iterator[str]:
        """Scores of three sentences."""
        yield "import torch"
        yield "from transformers import AutoModelForTokenClassification, AutoTokenizer"
        yield ""
        yield 'sentences = ["...", "...", "..."]'
        yield 'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")'
        yield 'model = AutoModelForTokenClassification.from_pretrained("DIRECTORY")'
        yield 'rows = [tokenizer(sentence)["input_ids"] for sentence in sentences]'
        yield "ids = torch.tensor([[token for row in rows for token in row]])"
        yield "types = torch.tensor([[number % 2 for number, row in enumerate(rows) for _ in row]])"
        yield "logits = model(input_ids=ids, token_type_ids=types).logits[0, :, 0]"
        if facts.get("pooling") == "mean":
            yield "print([part.mean().item() for part in logits.split([len(row) for row in rows])])"
        else:
            yield "print(logits[ids[0] == tokenizer.cls_token_id])"


COUNTERPARTS: dict[str, Counterpart] = {
    "classification": SequenceClassification(),
    "sentiment": SequenceClassification(),
    "ner": TokenClassification(),
    "tagging": TokenClassification(),
    "qa": QuestionAnswering(),
    "summarization": SentenceScoring(),
}

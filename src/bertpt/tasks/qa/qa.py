"""Question answering by a piece of the context: loss, predictions and scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from bertpt.batch import Batch, LossTerm
from bertpt.config.finetune.qa import QuestionConfig
from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.model.answering import BertForQuestionAnswering, span_loss
from bertpt.tasks.examples import limited
from bertpt.tasks.qa.question_windows import Windows, encode_questions
from bertpt.tasks.qa.questions import Question, read_questions
from bertpt.tasks.qa.spans import Prediction, Window, decide
from bertpt.tasks.qa.squad_scores import best_scores, best_threshold
from bertpt.tasks.task import Examples, Facts, Scored, Task, nothing, outputs
from bertpt.train.updates.step import Objective, Terms

_RULE_QUESTIONS = 500  # of train, by which the constant rule is chosen
_RULE_WORDS = 30  # that it gives at most


class QuestionAnswering(Task):
    """The answer to a question as a piece of its context, or none.

    Its facts: ``version_2`` (whether there may be no answer), what cuts rows (``doc_stride``, ``max_query_length``),
    what chooses answers (``max_answer_length``, ``n_best``, ``null_score_threshold``), and ``baseline``: so many first
    words of the context are the best answer to the questions of train for one who reads none; 0: no answer is.
    """

    baseline: ClassVar[str] = "first words of the context, or never an answer"
    unit: ClassVar[str] = "questions"
    overflow: ClassVar[str] = "read in windows of"
    count_words: ClassVar[Mapping[str, str]] = {
        "bad_start": "answers that do not stand where answer_start says (not trained on)",
        "elsewhere": "of these that stand at one other place in the context",
        "spaces": "answers that differ from the context in white space (taken as they stand there)",
        "blank_answer": "blank answers (not trained on)",
        "unusable": "questions of which no answer stands where it should (not trained on)",
        "long_question": "questions cut to train.max_query_length",
        "long_answer": "answers longer than answers.max_answer_length (learnt, but never given whole)",
        "inside_token": "answers that begin or end inside a token (learnt with the whole of it)",
        "no_token": "answers of which the tokenizer leaves nothing (taken as no answer)",
    }

    def read(self, path: str, config: QuestionConfig) -> Examples:
        """The questions of a file."""
        found = read_questions(Path(path), config.data.format)
        return Examples(list(found.rows), found.faults, found.counts, found.notes)

    def facts(self, config: QuestionConfig, train: Sequence[Question]) -> Facts:
        """Settings, whether there are questions without an answer, and the rule of the baseline.

        Raises:
            RequestError: none can be learnt from, or some have no answer though the configuration says all have.
        """
        wanted, impossible = config.data.version_2_with_negative, [row for row in train if row.is_impossible]
        if wanted is False and impossible:
            raise RequestError(
                f"{impossible[0].place}: {len(impossible):,} questions have no answer, so"
                " data.version_2_with_negative=false does not hold"
            )
        if not any(row.spans for row in train):
            what = "no question has an answer" if len(impossible) == len(train) else "no answer stands where it should"
            raise RequestError(f"{config.data.train}: {what} (answers, answer_start), so there is nothing to learn")
        version_2 = bool(impossible) if wanted is None else wanted
        rules = range(0 if version_2 else 1, _RULE_WORDS + 1)
        some = limited(self.trainable(train), _RULE_QUESTIONS)
        return {
            "version_2": version_2,
            "doc_stride": config.train.doc_stride,
            "max_query_length": config.train.max_query_length,
            "max_answer_length": config.answers.max_answer_length,
            "n_best": config.answers.n_best,
            "null_score_threshold": config.answers.null_score_threshold,
            "baseline": max(rules, key=lambda words: _means(some, _first_words(some, words), version_2)["f1"]),
        }

    def trainable(self, examples: Sequence[Question]) -> Sequence[Question]:
        """Those with an answer that stands where it should, and those known to have none."""
        return [example for example in examples if example.spans or example.is_impossible]

    def unfit(self, examples: Sequence[Question], facts: Facts) -> list[str]:
        """Questions without an answer where train has none of the kind."""
        if facts["version_2"]:
            return []
        return [
            f"{example.place}: has no answer, as no question of train; to allow it, set"
            " data.version_2_with_negative=true"
            for example in examples
            if example.is_impossible
        ]

    def build(self, model: Model, facts: Facts) -> BertForQuestionAnswering:
        """Encoder and head."""
        return BertForQuestionAnswering(model, facts["vocab_size"])

    def encode(
        self, examples: Sequence[Question], tokenizer: WordPieceTokenizer, facts: Facts, *, known: bool
    ) -> Windows:
        """Windows that overlap."""
        return encode_questions(tokenizer, examples, facts, known=known)

    def objective(self, config: QuestionConfig, facts: Facts, train: Sequence[Question]) -> Objective:
        """Half the sum of the cross entropies of begin and end."""
        return _span_objective

    def count_terms(self, batch: Batch) -> dict[str, int]:
        """Rows."""
        return {"label": batch.rows}

    def predict(
        self,
        model: nn.Module,
        encoded: Any,
        facts: Facts,
        *,
        precision: str = "fp32",
        before_batch: Callable[[], None] = nothing,
    ) -> list[Prediction]:
        """The best answers to each question."""
        windows: list[Any] = [None] * len(encoded.rows)
        for indices, batch, logits in outputs(model, encoded, precision=precision, before_batch=before_batch):
            values, first = logits.float().cpu().numpy(), batch.first.cpu().numpy()
            for row, at in zip(indices, first, strict=True):
                begin = at + encoded.places[row]
                part = values[begin : begin + encoded.sizes[row]]
                windows[row] = Window(int(encoded.begins[row]), part[:, 0], part[:, 1], float(values[at].sum()))
        found: list[list[Window]] = [[] for _ in encoded.contexts]
        for number, window in zip(encoded.of, windows, strict=True):
            found[number].append(window)
        return [
            decide(
                one,
                context,
                offsets,
                max_answer_length=facts["max_answer_length"],
                n_best=facts["n_best"],
                version_2=facts["version_2"],
                threshold=facts["null_score_threshold"],
            )
            for one, context, offsets in zip(found, encoded.contexts, encoded.offsets, strict=True)
        ]

    def score(self, examples: Sequence[Question], predictions: Sequence[Prediction], facts: Facts) -> Scored:
        """Exact match and F1; in version 2 also those of either kind of question, and of the best threshold."""
        version_2 = facts["version_2"]
        texts = [prediction.text for prediction in predictions]
        details: dict[str, Any] = {"baseline_words": facts["baseline"]}
        if version_2:
            for name, wanted in (("has_answer", False), ("no_answer", True)):
                chosen = [(row, text) for row, text in zip(examples, texts, strict=True) if row.is_impossible is wanted]
                if chosen:
                    rows, given = zip(*chosen, strict=True)
                    details[name] = {"questions": len(chosen)} | _means(rows, given, True)
            details["best_thresholds"] = _best_thresholds(examples, predictions)
        return Scored(
            _means(examples, texts, version_2),
            _means(examples, _first_words(examples, facts["baseline"]), version_2),
            details,
        )

    def describe(
        self, examples: Sequence[Question], predictions: Sequence[Prediction], facts: Facts
    ) -> Iterator[dict[str, Any]]:
        """``id``, ``question``, ``answer`` with ``start`` and ``end`` in characters, ``score``, ``probability``; more.

        Where no answer is given, ``answer`` is empty and ``start`` and ``end`` are ``None``. ``null_score`` is that of
        no answer; ``n_best`` are all answers that were kept.
        """
        for example, found in zip(examples, predictions, strict=True):
            kept = [
                {
                    "answer": answer.text,
                    "start": answer.start,
                    "end": answer.end,
                    "score": round(answer.score, 6),
                    "probability": round(answer.probability, 6),
                }
                for answer in found.answers
            ]
            null = {"answer": "", "start": None, "end": None, "score": round(found.null_score, 6)}
            best = null | {"probability": round(found.null_probability, 6)} if found.is_null else kept[0]
            own = {"id": example.id, "question": example.question}
            yield own | best | {"null_score": round(found.null_score, 6), "n_best": kept}

    def truth(self, example: Question) -> list[str]:
        """The answers."""
        return list(example.answers or ())

    def detail_lines(self, split: str, details: Mapping[str, Any], facts: Facts) -> Iterator[str]:
        """Scores of either kind of question, and of the best thresholds."""
        words = details["baseline_words"]
        yield f"  {split}: the baseline " + (f"answers with the first {words} words" if words else "never answers")
        for name, what in (("has_answer", "with an answer"), ("no_answer", "without one")):
            if name in details:
                found = details[name]
                scores = f"exact_match {found['exact_match']:.4f}, f1 {found['f1']:.4f}"
                yield f"  {split}: {found['questions']:,} questions {what}: {scores}"
        for name, found in details.get("best_thresholds", {}).items():
            at = "that never answers" if found["threshold"] is None else f"at {found['threshold']:.4f}"
            what = f"best {name} of any null_score_threshold, chosen on {split} itself"
            yield f"  {split}: {what}: {found['score']:.4f} {at}"

    def key(self, example: Question) -> tuple[str, ...]:
        """Question and context, whatever their white space."""
        return (" ".join(example.question.split()), self.source(example))

    def source(self, example: Question) -> str:
        """The context."""
        return " ".join(example.context.split())

    def label_counts(self, examples: Sequence[Question], facts: Facts) -> dict[str, float]:
        """Questions with and without an answer, contexts, and median lengths in words."""
        if not examples:
            return {}
        contexts = {example.context for example in examples}
        answers = [len(example.answers[0].split()) for example in examples if example.answers]
        return {
            "with an answer": len(answers),
            "without": len(examples) - len(answers),
            "contexts": len(contexts),
            "median words of a question": statistics.median(len(example.question.split()) for example in examples),
            "of a context": statistics.median(len(context.split()) for context in contexts),
            "of an answer": statistics.median(answers) if answers else 0,
        }


def _span_objective(model: Any, batch: Batch) -> Terms:
    loss, right = span_loss(model(batch), batch)
    return Terms({"label": LossTerm(loss, batch.rows)}, {"label": right})


def _means(examples: Sequence[Question], texts: Sequence[str], version_2: bool) -> dict[str, float]:
    pairs = [
        best_scores(text, example.answers or [""], version_2=version_2)
        for example, text in zip(examples, texts, strict=True)
    ]
    exact, f1 = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    return {"exact_match": exact, "f1": f1}


def _first_words(examples: Sequence[Question], words: int) -> list[str]:
    return [" ".join(example.context.split(maxsplit=words)[:words]) for example in examples]


def _best_thresholds(examples: Sequence[Question], predictions: Sequence[Prediction]) -> dict[str, Any]:
    best = [found.answers[0].text if found.answers else "" for found in predictions]
    scores = [best_scores(text, row.answers or [""], version_2=True) for row, text in zip(examples, best, strict=True)]
    answerable = [not row.is_impossible for row in examples]
    margins = [found.margin for found in predictions]
    found = {}
    for name, values in zip(("exact_match", "f1"), zip(*scores, strict=True), strict=True):
        score, threshold = best_threshold(values, answerable, margins)
        found[name] = {"score": score, "threshold": threshold if math.isfinite(threshold) else None}
    return found

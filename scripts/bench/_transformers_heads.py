"""The matching head of transformers, trained in a plain loop: the same rows and settings, padded batch by batch.

What is shared with bertpt is what must be equal and is not under test: reading, settings, the schedule, the groups of
weight decay, and the code of the scores. Tokenizer, model, batches, order and loop are not.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertpt.config.finetune import FinetuneConfig
from bertpt.config.schema import Optimizer, Schedule
from bertpt.tasks.task import Facts
from bertpt.train.updates.optim import parameter_groups
from bertpt.train.updates.schedule import learning_rate

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
EVALUATION_ROWS = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenized row.

    Attributes:
        ids, types: of its tokens.
        labels: by transformers' argument: a number, or a list with one for each token.
        place: of the decoder: the example, and what leads back to its text.
    """

    ids: list[int]
    types: list[int]
    labels: dict[str, Any]
    place: Any = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A head of transformers for one kind of task.

    Attributes:
        rows: examples, its own fast tokenizer, the longest row, the task's facts -> rows.
        head: name of the ``AutoModelFor...`` class, and arguments from the facts.
        predictions: outputs of each row (arrays by name, without padding), the rows, the examples, the facts
            -> predictions as ``Task.score`` takes them.
        of_tokens: whether outputs are of tokens, not of rows.
    """

    rows: Callable[[Sequence[Any], Any, int, Facts], list[Row]]
    head: Callable[[Facts], tuple[str, dict[str, Any]]]
    predictions: Callable[[list[dict[str, Any]], list[Row], Sequence[Any], Facts], Any]
    of_tokens: bool = False


def padded(rows: Sequence[Row]) -> dict[str, Tensor]:
    """A batch, as long as its longest row; -100 where a token has no label."""

    def grid(values: Sequence[list[int]], empty: int) -> Tensor:
        return pad_sequence([torch.tensor(value) for value in values], batch_first=True, padding_value=empty)

    batch = {
        "input_ids": grid([row.ids for row in rows], 0),
        "token_type_ids": grid([row.types for row in rows], 0),
        "attention_mask": grid([[1] * len(row.ids) for row in rows], 0),
    }
    for name, first in rows[0].labels.items():
        values = [row.labels[name] for row in rows]
        batch[name] = grid(values, -100) if isinstance(first, list) else torch.tensor(values)
    return batch


def update(model: nn.Module, optimizer: torch.optim.Optimizer, rows: Sequence[Row], rate: float, clip: float) -> None:
    """One update."""
    model(**padded(rows)).loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def build_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW, fused, with bertpt's defaults."""
    own = Optimizer()
    return torch.optim.AdamW(parameter_groups(model, weight_decay), lr=lr, betas=own.betas, eps=own.eps, fused=True)


@torch.no_grad()
def outputs(model: nn.Module, rows: Sequence[Row], *, of_tokens: bool) -> list[dict[str, Any]]:
    """Outputs of each row by name, those of tokens without padding. Rows of like length go together."""
    found: list[dict[str, Any]] = [{} for _ in rows]
    order = np.argsort([len(row.ids) for row in rows], kind="stable")
    model.eval()
    for begin in range(0, len(order), EVALUATION_ROWS):
        chosen = order[begin : begin + EVALUATION_ROWS]
        batch = padded([Row(rows[index].ids, rows[index].types, {}) for index in chosen])
        for name, values in model(**batch).items():
            for index, value in zip(chosen, values.numpy(), strict=True):
                found[index][name] = value[: len(rows[index].ids)] if of_tokens else value
    model.train()
    return found


def train(
    reference: Reference,
    folder: Path,
    config: FinetuneConfig,
    facts: Facts,
    examples: dict[str, list[Any]],
    score: Callable[[Sequence[Any], Any], dict[str, float]],
) -> dict[str, Any]:
    """Train on ``train``, choose the epoch on ``dev``; its scores on ``dev`` and ``test``."""
    import transformers

    transformers.logging.disable_progress_bar()
    settings = config.train
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(settings.seed)
    name, arguments = reference.head(facts)
    dropout = settings.dropout
    if dropout is not None:
        arguments |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = getattr(transformers, name).from_pretrained(folder, attn_implementation="sdpa", **arguments).train()
    rows = {split: reference.rows(found, tokenizer, settings.max_length, facts) for split, found in examples.items()}
    optimizer = build_optimizer(model, settings.lr, settings.weight_decay)
    schedule = Schedule(kind=settings.schedule, warmup_ratio=settings.warmup_ratio)

    def scores(split: str) -> dict[str, float]:
        found = outputs(model, rows[split], of_tokens=reference.of_tokens)
        return score(examples[split], reference.predictions(found, rows[split], examples[split], facts))

    draw = torch.Generator().manual_seed(settings.seed)
    per_epoch = -(-len(rows["train"]) // settings.batch_size)
    best: dict[str, Any] = {"score": -float("inf"), "epoch": 0}
    done = 0
    for epoch in range(1, settings.epochs + 1):
        order = torch.randperm(len(rows["train"]), generator=draw).tolist()
        for begin in range(0, len(order), settings.batch_size):
            rate = learning_rate(done, per_epoch * settings.epochs, schedule, settings.lr)
            chosen = [rows["train"][index] for index in order[begin : begin + settings.batch_size]]
            update(model, optimizer, chosen, rate, settings.clip)
            done += 1
        found = scores("dev")
        if found[config.metric] > best["score"]:
            weights = copy.deepcopy(model.state_dict())
            best = {"score": found[config.metric], "epoch": epoch, "dev": found, "weights": weights}
    if not best["epoch"]:
        raise SystemExit(f"{config.name}: {config.metric} on dev was no number after any epoch")
    model.load_state_dict(best["weights"])
    return {"epoch": best["epoch"], "dev": best["dev"], "test": scores("test")}


# --- classification -------------------------------------------------------------------------------------------


def _texts(examples: Sequence[Any], tokenizer: Any, max_length: int, facts: Facts) -> list[Row]:
    columns = [list(column) for column in zip(*(example.texts for example in examples), strict=True)]
    encoded = tokenizer(*columns, truncation="longest_first", max_length=max_length)
    number = {name: index for index, name in enumerate(facts["labels"])}
    labels = [float(e.label) if facts["regression"] else number[e.label] for e in examples]
    return [
        Row(ids, types, {"labels": label})
        for ids, types, label in zip(encoded["input_ids"], encoded["token_type_ids"], labels, strict=True)
    ]


def _sequence_head(facts: Facts) -> tuple[str, dict[str, Any]]:
    return "AutoModelForSequenceClassification", {
        "num_labels": max(1, len(facts["labels"])),
        "problem_type": "regression" if facts["regression"] else "single_label_classification",
    }


def _logits(found: list[dict[str, Any]], rows: list[Row], examples: Sequence[Any], facts: Facts) -> Any:
    return np.stack([output["logits"] for output in found]).astype(np.float32)


SEQUENCE = Reference(_texts, _sequence_head, _logits)


# --- tags of words --------------------------------------------------------------------------------------------


def _words(examples: Sequence[Any], tokenizer: Any, max_length: int, facts: Facts) -> list[Row]:
    """The first piece of each word has its tag; words that do not fit are cut."""
    number = {name: index for index, name in enumerate(facts["labels"])}
    encoded = tokenizer(
        [list(example.words) for example in examples], is_split_into_words=True, truncation=True, max_length=max_length
    )
    rows = []
    for index, example in enumerate(examples):
        first: dict[int, int] = {}  # token of each word
        for token, word in enumerate(encoded.word_ids(index)):
            if word is not None:
                first.setdefault(word, token)
        labels = [-100] * len(encoded["input_ids"][index])
        for word, token in first.items():
            labels[token] = number[example.tags[word]]
        ids, types = encoded["input_ids"][index], encoded["token_type_ids"][index]
        rows.append(Row(ids, types, {"labels": labels}, first))
    return rows


def _token_head(facts: Facts) -> tuple[str, dict[str, Any]]:
    return "AutoModelForTokenClassification", {"num_labels": len(facts["labels"])}


def _tags(found: list[dict[str, Any]], rows: list[Row], examples: Sequence[Any], facts: Facts) -> Any:
    """Decoded as by bertpt without a CRF; words without a token get the most frequent tag."""
    from bertpt.tasks.tagging.tagging import decode

    words = np.array([len(example.words) for example in examples])
    usual = np.zeros(len(facts["labels"]), np.float32)
    usual[facts["labels"].index(facts["baseline"]["tag"])] = 1
    emissions = [
        output["logits"][row.place[word]] if word in row.place else usual
        for output, row, count in zip(found, rows, words, strict=True)
        for word in range(count)
    ]
    return decode(torch.from_numpy(np.stack(emissions)), words, None, facts)


WORDS = Reference(_words, _token_head, _tags, of_tokens=True)


# --- questions ------------------------------------------------------------------------------------------------


def _questions(examples: Sequence[Any], tokenizer: Any, max_length: int, facts: Facts) -> list[Row]:
    """Windows; one that holds the answer has its first and last token, another [CLS]."""
    questions = [example.question for example in examples]
    questions = [
        question[: offsets[facts["max_query_length"] - 1][1]] if len(offsets) > facts["max_query_length"] else question
        for question, offsets in zip(questions, _offsets(tokenizer, questions), strict=True)
    ]
    contexts = [example.context for example in examples]
    full = _offsets(tokenizer, contexts)
    rows = []
    for number, (example, question, offsets) in enumerate(zip(examples, questions, full, strict=True)):
        room = max_length - 3 - len(tokenizer(question, add_special_tokens=False)["input_ids"])
        encoded = tokenizer(
            question,
            example.context,
            truncation="only_second",
            max_length=max_length,
            stride=max(0, room - facts["doc_stride"]),  # how far windows overlap
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for window, own in enumerate(encoded["offset_mapping"]):
            at = [token for token, part in enumerate(encoded.sequence_ids(window)) if part == 1]
            start = end = 0
            if example.spans and at:
                begin, after = example.spans[0]
                inside = [token for token in at if own[token][1] > begin and own[token][0] < after]
                if inside and own[at[0]][0] <= begin and after <= own[at[-1]][1]:
                    start, end = inside[0], inside[-1]
            labels = {"start_positions": start, "end_positions": end}
            place = (number, offsets, at, offsets.index(own[at[0]]) if at else 0)
            rows.append(Row(encoded["input_ids"][window], encoded["token_type_ids"][window], labels, place))
    return rows


def _offsets(tokenizer: Any, texts: list[str]) -> Any:
    return tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]


def _question_head(facts: Facts) -> tuple[str, dict[str, Any]]:
    return "AutoModelForQuestionAnswering", {}


def _answers(found: list[dict[str, Any]], rows: list[Row], examples: Sequence[Any], facts: Facts) -> Any:
    """Decoded as by bertpt."""
    from bertpt.tasks.qa.spans import Window, decide

    windows: list[list[Any]] = [[] for _ in examples]
    offsets: list[Any] = [None] * len(examples)
    for output, row in zip(found, rows, strict=True):
        number, own, at, begin = row.place
        starts, ends = output["start_logits"], output["end_logits"]
        windows[number].append(Window(begin, starts[at], ends[at], float(starts[0] + ends[0])))
        offsets[number] = np.array(own, np.int64).reshape(-1, 2)
    return [
        decide(
            own,
            example.context,
            places,
            max_answer_length=facts["max_answer_length"],
            n_best=facts["n_best"],
            version_2=facts["version_2"],
            threshold=facts["null_score_threshold"],
        )
        for own, example, places in zip(windows, examples, offsets, strict=True)
    ]


QUESTIONS = Reference(_questions, _question_head, _answers, of_tokens=True)

REFERENCES: dict[str, Reference] = {
    "classification": SEQUENCE,
    "sentiment": SEQUENCE,
    "ner": WORDS,
    "tagging": WORDS,
    "qa": QUESTIONS,
}

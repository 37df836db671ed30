"""Classification, sentiment and regression of a text or a pair: model, loss, predictions, scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertpt.batch import Batch, LossTerm
from bertpt.config import plain
from bertpt.config.finetune.classification import ClassificationConfig, ClassificationTrain, Head
from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.tasks.classification.labelled import Example, label_names, read_examples, unseen_labels
from bertpt.tasks.encode import encode_rows
from bertpt.tasks.metrics import class_scores, confusion, number_scores
from bertpt.tasks.task import Encoded, Examples, Facts, Scored, Task, nothing, outputs
from bertpt.train.updates.step import Objective, Terms


class Classification(Task):
    """Classes, or one number, of a text or a pair.

    Its facts: ``regression``, ``labels`` by number, ``pair``, ``head``, and ``baseline``: what is said without
    reading the text, train's most frequent label or its mean.
    """

    count_words: ClassVar[Mapping[str, str]] = {
        "blank": "blank lines passed over",
        "left_out": "rows left out by data.label_map",
        "empty": "rows with an empty text",
    }

    def read(self, path: str, config: ClassificationConfig) -> Examples:
        """The rows of a table."""
        return read_examples(path, config)

    def facts(self, config: ClassificationConfig, train: Sequence[Example]) -> Facts:
        """Labels and settings.

        Raises:
            RequestError: a single label, or the metric is none of these labels.
        """
        names = label_names(train, config)
        if config.metric == "f1" and len(names) != 2:
            raise RequestError(f"train.metric: f1 is of two labels, here are {len(names)}; set f1_macro")
        if config.regression:
            baseline: Any = float(scores_of(train).mean())
        else:
            counts = Counter(example.label for example in train)
            baseline = max(names, key=lambda name: counts[name])
        return {
            "regression": config.regression,
            "labels": names,
            "pair": config.data.pair is not None,
            "head": plain(config.head),
            "baseline": baseline,
        }

    def unfit(self, examples: Sequence[Example], facts: Facts) -> list[str]:
        """Labels that train lacks."""
        return [] if facts["regression"] else unseen_labels(examples, facts["labels"])

    def build(self, model: Model, facts: Facts) -> BertForSequenceClassification:
        """Encoder, pooler and head."""
        head = Head.model_validate(facts["head"])
        return BertForSequenceClassification(
            model,
            facts["vocab_size"],
            max(1, len(facts["labels"])),
            deep=(head.width or model.hidden_size) if head.kind == "deep" else None,
            dropout=model.hidden_dropout_prob if head.dropout is None else head.dropout,
        )

    def encode(
        self, examples: Sequence[Example], tokenizer: WordPieceTokenizer, facts: Facts, *, known: bool
    ) -> Encoded:
        """A row for each example, cut where it is too long."""
        rows, full = encode_rows(tokenizer, [example.texts for example in examples], facts["max_length"])
        cut = int((full > rows.lengths).sum())
        return Encoded(rows, full, cut, labels=label_tensor(examples, facts) if known else None)

    def objective(self, config: ClassificationConfig, facts: Facts, train: Sequence[Example]) -> Objective:
        """Cross entropy of the class, weighted as configured, or the squared error."""
        if facts["regression"]:
            return RowObjective(regression=True)
        weights = class_weights(config.train, label_tensor(train, facts), facts["labels"])
        return RowObjective(regression=False, weights=weights)

    def count_terms(self, batch: Batch) -> dict[str, int]:
        """Rows."""
        return {"label": batch.rows}

    def predict(
        self,
        model: nn.Module,
        encoded: Encoded,
        facts: Facts,
        *,
        precision: str = "fp32",
        before_batch: Callable[[], None] = nothing,
    ) -> NDArray[np.float32]:
        """Logits [N, labels] or [N, 1]."""
        found = np.empty((len(encoded.rows), max(1, len(facts["labels"]))), np.float32)
        for indices, _, logits in outputs(model, encoded, precision=precision, before_batch=before_batch):
            found[indices] = logits.float().cpu().numpy()
        return found

    def score(self, examples: Sequence[Example], predictions: Any, facts: Facts) -> Scored:
        """Scores of the classes or numbers, and the mean loss (of classes unweighted, in nats)."""
        labels, usual = label_tensor(examples, facts), facts["baseline"]
        if facts["regression"]:
            scores = number_scores(labels.numpy(), predictions[:, 0])
            return Scored(scores | {"loss": scores["mse"]}, {"mse": float(((labels.double() - usual) ** 2).mean())}, {})
        found, classes = predictions.argmax(-1), len(facts["labels"])
        loss = float(F.cross_entropy(torch.from_numpy(predictions), labels))
        return Scored(
            class_scores(labels.numpy(), found, classes) | {"loss": loss},
            {"accuracy": sum(example.label == usual for example in examples) / len(examples)},
            {} if (matrix := confusion(labels.numpy(), found, classes)) is None else {"confusion": matrix},
        )

    def describe(self, examples: Sequence[Example], predictions: Any, facts: Facts) -> Iterator[dict[str, Any]]:
        """``text`` (and ``pair``) with ``label`` and ``probabilities`` by label, or with ``score``."""
        shares = torch.from_numpy(predictions).double().softmax(-1).tolist()
        for example, row, numbers in zip(examples, shares, predictions, strict=True):
            texts: dict[str, Any] = dict(zip(("text", "pair"), example.texts, strict=False))
            if facts["regression"]:
                yield texts | {"score": round(float(numbers[0]), 6)}
                continue
            probabilities = {name: round(share, 6) for name, share in zip(facts["labels"], row, strict=True)}
            yield texts | {"label": facts["labels"][int(np.argmax(row))], "probabilities": probabilities}

    def truth(self, example: Example) -> str:
        """The label."""
        return example.label

    def detail_lines(self, split: str, details: Mapping[str, Any], facts: Facts) -> Iterator[str]:
        """The confusion matrix."""
        if "confusion" in details:
            yield from _matrix(split, facts["labels"], details["confusion"])

    def key(self, example: Example) -> tuple[str, ...]:
        """The texts, whatever their white space."""
        return tuple(" ".join(text.split()) for text in example.texts)

    def label_counts(self, examples: Sequence[Example], facts: Facts) -> dict[str, float]:
        """Rows by label; in a regression smallest, mean and largest score."""
        if facts.get("regression"):
            values = scores_of(examples)
            return {"smallest": values.min(), "mean": values.mean(), "largest": values.max()} if len(values) else {}
        counts = Counter(example.label for example in examples)
        names = facts.get("labels", [])
        return {name: counts[name] for name in [*names, *sorted(counts.keys() - set(names))]}


def scores_of(examples: Sequence[Example]) -> NDArray[np.float64]:
    """The labels as numbers, float64 [N]."""
    return np.array([float(example.label) for example in examples], np.float64)


def label_tensor(examples: Sequence[Example], facts: Facts) -> Tensor:
    """Labels of the rows [N]: float32 scores in a regression, else int64 numbers of the names."""
    if facts["regression"]:
        return torch.from_numpy(scores_of(examples).astype(np.float32))
    number = {name: index for index, name in enumerate(facts["labels"])}
    return torch.tensor([number[example.label] for example in examples], dtype=torch.long)


def class_weights(train: ClassificationTrain, labels: Tensor, names: Sequence[str]) -> Tensor | None:
    """Weight of each label's loss, float32 [classes]; ``None``: all 1.

    Raises:
        RequestError: ``train.label_weights`` names no label.
    """
    if train.class_weights == "balanced":
        counts = torch.bincount(labels, minlength=len(names)).clamp(min=1)
        return len(labels) / (len(names) * counts.float())
    if unknown := [label for label in train.label_weights if label not in names]:
        raise RequestError(f"train.label_weights: no such label: {', '.join(unknown)}; there are {', '.join(names)}")
    if not train.label_weights:
        return None
    return torch.tensor([train.label_weights.get(name, 1.0) for name in names])


@dataclass(frozen=True, slots=True)
class RowObjective:
    """Cross entropy of the class (weighted by label), or squared error of the number, summed over rows.

    The sum is divided by the number of rows, whatever their weights: ``balanced`` ones average 1 over train.
    """

    regression: bool
    weights: Tensor | None = None

    def __call__(self, model: Any, batch: Batch) -> Terms:
        """Loss term ``label`` and, of classes, right predictions."""
        assert batch.row_labels is not None
        logits = model(batch).float()
        if self.regression:
            loss = F.mse_loss(logits[:, 0], batch.row_labels, reduction="sum")
            return Terms({"label": LossTerm(loss, batch.rows)}, {})
        weights = None if self.weights is None else self.weights.to(logits.device, non_blocking=True)
        loss = F.cross_entropy(logits, batch.row_labels, weight=weights, reduction="sum")
        right = (logits.argmax(-1) == batch.row_labels).sum()
        return Terms({"label": LossTerm(loss, batch.rows)}, {"label": right})


def _matrix(split: str, names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Iterator[str]:
    if len(names) > 20:
        yield f"  {split}: confusion matrix of {len(names)} labels in eval.json"
        return
    width = max(8, *(len(name) + 2 for name in names))
    yield f"  {split}, true label by predicted one:"
    yield f"  {'':<{width}}" + "".join(f"{name:>{width}}" for name in names)
    for name, row in zip(names, matrix, strict=True):
        yield f"  {name:<{width}}" + "".join(f"{count:>{width},}" for count in row)

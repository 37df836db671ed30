"""Classification, sentiment and regression of a text or a pair: model, loss, predictions, scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertpt.batch import Batch, LossTerm
from bertpt.config import plain
from bertpt.config.finetune import FinetuneConfig, Head
from bertpt.config.schema import Model
from bertpt.data.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.tasks.encode import Rows, encode_rows
from bertpt.tasks.examples import Example, Examples, Splits
from bertpt.tasks.metrics import class_scores, number_scores
from bertpt.tasks.work import Parts
from bertpt.train.evaluate import evaluating
from bertpt.train.step import Terms, autocast

EVALUATION_ROWS = 64  # in a batch


def shaped(model: Model, config: FinetuneConfig) -> Model:
    """The encoder's shape with the dropout of the configuration.

    Raises:
        RequestError: it has too few positions, or no second segment for pairs.
    """
    length, dropout = config.train.max_length, config.train.dropout
    faults = []
    if length > model.max_position_embeddings:
        faults.append(
            f"train.max_length: {length} is above the {model.max_position_embeddings} positions of {config.from_}"
        )
    if config.data.pair is not None and model.type_vocab_size < 2:
        faults.append(f"data.pair: {config.from_} has one segment, so it takes no pairs")
    if faults:
        raise RequestError(faults)
    changes = {} if dropout is None else {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return model.model_copy(update={"init_from": None, **changes})


def build_model(model: Model, vocab_size: int, outputs: int, head: Head) -> BertForSequenceClassification:
    """A new model: ``model`` is as :func:`shaped` returns it."""
    return BertForSequenceClassification(
        model,
        vocab_size,
        outputs,
        deep=(head.width or model.hidden_size) if head.kind == "deep" else None,
        dropout=model.hidden_dropout_prob if head.dropout is None else head.dropout,
    )


def state_facts(config: FinetuneConfig, model: Model, vocab_size: int, names: Sequence[str]) -> dict[str, Any]:
    """Plain data by which :func:`from_facts` makes the model again."""
    return {
        "task": config.task,
        "regression": config.regression,
        "labels": list(names),
        "pair": config.data.pair is not None,
        "max_length": config.train.max_length,
        "head": plain(config.head),
        "model": plain(model),
        "vocab_size": vocab_size,
    }


def from_facts(facts: dict[str, Any]) -> BertForSequenceClassification:
    """The model that :func:`state_facts` describes, with random weights."""
    return build_model(
        Model.model_validate(facts["model"]),
        facts["vocab_size"],
        max(1, len(facts["labels"])),
        Head.model_validate(facts["head"]),
    )


def label_tensor(examples: Sequence[Example], names: Sequence[str], *, regression: bool) -> Tensor:
    """Labels of the rows [N]: float32 scores in a regression, else int64 numbers of the names."""
    if regression:
        return torch.from_numpy(Examples(list(examples), []).scores())
    number = {name: index for index, name in enumerate(names)}
    return torch.tensor([number[example.label] for example in examples], dtype=torch.long)


def class_weights(config: FinetuneConfig, labels: Tensor, names: Sequence[str]) -> Tensor | None:
    """Weight of each label's loss, float32 [classes]; ``None``: all 1.

    Raises:
        RequestError: ``train.label_weights`` names no label.
    """
    if config.train.class_weights == "balanced":
        counts = torch.bincount(labels, minlength=len(names)).clamp(min=1)
        return len(labels) / (len(names) * counts.float())
    if unknown := [label for label in config.train.label_weights if label not in names]:
        raise RequestError(f"train.label_weights: no such label: {', '.join(unknown)}; there are {', '.join(names)}")
    if not config.train.label_weights:
        return None
    return torch.tensor([config.train.label_weights.get(name, 1.0) for name in names])


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
        loss = F.cross_entropy(logits, batch.row_labels, weight=self.weights, reduction="sum")
        right = (logits.argmax(-1) == batch.row_labels).sum()
        return Terms({"label": LossTerm(loss, batch.rows)}, {"label": right})


def count_rows(batch: Batch) -> dict[str, int]:
    """Counts of the loss term of :class:`RowObjective`."""
    return {"label": batch.rows}


def predict_rows(
    model: BertForSequenceClassification,
    rows: Rows,
    *,
    precision: str = "fp32",
    before_batch: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Logits [N, outputs] in the order of the rows; rows of like length are computed together."""
    order = np.argsort(rows.lengths, kind="stable")
    device = next(model.parameters()).device
    found = np.empty((len(rows), _outputs(model)), np.float32)
    with evaluating(model):
        for begin in range(0, len(order), EVALUATION_ROWS):
            before_batch()
            indices = order[begin : begin + EVALUATION_ROWS]
            with autocast(device, precision):
                logits = model(rows.batch(indices).to(device))
            found[indices] = logits.float().cpu().numpy()
    return found


def _outputs(model: BertForSequenceClassification) -> int:
    last = [module for module in model.classifier.modules() if isinstance(module, torch.nn.Linear)][-1]
    return last.out_features


def score_logits(logits: NDArray[np.float32], labels: Tensor, *, regression: bool) -> dict[str, float]:
    """Scores of the predictions [N, outputs], and the mean loss (of classes unweighted, in nats)."""
    if regression:
        scores = number_scores(labels.numpy(), logits[:, 0])
        return scores | {"loss": scores["mse"]}
    loss = float(F.cross_entropy(torch.from_numpy(logits), labels))
    return class_scores(labels.numpy(), logits.argmax(-1), logits.shape[1]) | {"loss": loss}


def texts_of(examples: Sequence[Example]) -> list[tuple[str, ...]]:
    """The texts alone."""
    return [example.texts for example in examples]


def make_parts(
    config: FinetuneConfig,
    splits: Splits,
    model: BertForSequenceClassification,
    tokenizer: WordPieceTokenizer,
    *,
    device: torch.device,
    precision: str,
    say: Callable[[str], None],
) -> Parts:
    """What the loop needs of this task.

    Raises:
        RequestError: label weights or metric do not fit the labels.
    """
    regression, length = config.regression, config.train.max_length
    if config.metric == "f1" and len(splits.names) != 2:
        raise RequestError(f"train.metric: f1 is of two labels, here are {len(splits.names)}; set f1_macro")
    encoded = {
        split: encode_rows(tokenizer, texts_of(examples), length)
        for split, examples in (("train", splits.train), ("dev", splits.dev))
    }
    for split, rows in encoded.items():
        say(_cut_line(split, rows, length))
    train, dev = encoded["train"], encoded["dev"]
    labels = label_tensor(splits.train, splits.names, regression=regression)
    dev_labels = label_tensor(splits.dev, splits.names, regression=regression)
    weights = class_weights(config, labels, splits.names)

    def scores(before_batch: Callable[[], None]) -> dict[str, float]:
        logits = predict_rows(model, dev, precision=precision, before_batch=before_batch)
        return score_logits(logits, dev_labels, regression=regression)

    return Parts(
        model=model,
        rows=len(train),
        batch=lambda indices: train.batch(indices, labels[torch.from_numpy(indices)]),
        objective=RowObjective(regression, None if weights is None else weights.to(device)),
        count_terms=count_rows,
        loss_weights={"label": 1.0},
        scores=scores,
        metric=config.metric,
        facts=state_facts(config, model.config, tokenizer.vocab_size, splits.names),
    )


def _cut_line(split: str, rows: Rows, length: int) -> str:
    cut = f"{rows.cut:,} of them cut to {length} tokens" if rows.cut else "none cut"
    return f"{split}: {len(rows):,} rows, {int(rows.lengths.sum()):,} tokens, {cut}"

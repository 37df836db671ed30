"""``bertpt eval``: held-out scores of a run beside what can be reached without reading the context."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertpt.data.locate import trained_store
from bertpt.data.rows import baselines
from bertpt.data.rows.plan import pair_labels
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import RequestError
from bertpt.files import write_json
from bertpt.model.pretraining import BertForPreTraining
from bertpt.progress import say as say_line
from bertpt.train.checkpoints.checkpoint import newest_checkpoint, restore
from bertpt.train.evaluate import Predictions, heldout_scores, predict_heldout
from bertpt.train.pretrain import choose_device, heldout_stream, scoring_precision
from bertpt.train.rundir import open_run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one checkpoint on held-out rows, with their baselines. Losses in nats, shares from 0 to 1."""

    run: str
    step: int
    length: int
    rows: int
    predictions: int
    scores: dict[str, float]
    baselines: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain data; NaN and infinity become ``None``."""
        value = dataclasses.asdict(self)
        for part in ("scores", "baselines"):
            value[part] = {name: v if np.isfinite(v) else None for name, v in value[part].items()}
        return value

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Evaluation:
        """The inverse of ``as_dict``; other keys are passed over."""
        own = {field.name: value[field.name] for field in dataclasses.fields(cls)}
        for part in ("scores", "baselines"):
            own[part] = {name: float("nan") if v is None else v for name, v in own[part].items()}
        return cls(**own)

    def table(self) -> str:
        """The figures as lines of text, each beside its baselines."""
        return "\n".join(_lines(self))


def evaluate_run(
    directory: Path,
    *,
    data_dir: Path | None = None,
    max_rows: int | None = None,
    say: Callable[[str], None] = say_line,
    progress: bool = False,
) -> Evaluation:
    """Evaluate the newest intact checkpoint of a run at the length of its last phase; write ``eval.json``.

    Args:
        data_dir: where the corpora lie, if not where the run's configuration says.
        max_rows: held-out rows, ``evaluate.max_rows`` by default.
        progress: show progress on stderr.

    Raises:
        RequestError: no run, no checkpoint, or the data it was trained on are gone or changed.
    """
    run = open_run(directory)
    config = run.config if data_dir is None else run.config.model_copy(update={"data_dir": str(data_dir)})
    store = TokenStore.open(trained_store(config, run.facts["store"]))
    if store.manifest["fingerprint"] != run.facts["store"]:
        raise RequestError(
            f"{store.directory}: fingerprint {store.manifest['fingerprint'][:8]}, {directory} was trained on"
            f" {run.facts['store'][:8]}; evaluate on the data of the run (--data-dir)"
        )
    checkpoint = newest_checkpoint(directory, say)
    if checkpoint is None:
        raise RequestError(f"{directory}: has no checkpoint yet; `bertpt pretrain` goes on with it")
    model = BertForPreTraining(config.model, store.vocab_size, nsp=config.pairs.rule != "none")
    restore(checkpoint, model)
    device = choose_device(config.train.device)
    model.to(device)
    length = config.train.phases[-1].length
    stream = heldout_stream(store, config, length)
    precision = scoring_precision(config.train.precision, device)
    rows = max_rows or config.evaluate.max_rows
    predictions = predict_heldout(model, stream, max_rows=rows, precision=precision, shown=progress)
    scores, beside = compare(store, predictions, config.pairs.rule)
    result = Evaluation(
        str(directory), checkpoint.step, length, len(predictions.rows), len(predictions.labels), scores, beside
    )
    write_json(directory / "eval.json", result.as_dict())
    return result


def compare(store: TokenStore, predictions: Predictions, rule: str) -> tuple[dict[str, float], dict[str, float]]:
    """Scores of the predictions, and the baselines on the very same rows and masks.

    Halves in order or swapped (``rule: order``) are of one document: their sources tell nothing, their lengths might.
    """
    tokens, labels = store.heldout, predictions.labels
    probabilities = baselines.store_unigrams(store)
    document_loss, share = baselines.document_count_loss(
        tokens, predictions.rows, predictions.predictions_per_row, predictions.in_second, labels, probabilities
    )
    scores = heldout_scores(predictions)
    beside = {
        "unigram_loss": baselines.unigram_loss(labels, probabilities),
        "document_count_loss": document_loss,
        "document_count_share": share,
        "most_frequent_accuracy": float((labels == int(probabilities.argmax())).mean()),
    }
    if len(predictions.nsp_right):
        label, same = pair_labels(predictions.rows, rule), baselines.same_source(tokens, predictions.rows)
        source = tokens.sources[baselines.document_of(tokens, predictions.rows["a_start"])]
        scores["nsp_balanced_same_source"] = baselines.balanced_by_group(
            predictions.nsp_right[same], label[same], source[same]
        )
        beside["majority_accuracy"] = max(float(label.mean()), 1 - float(label.mean()))
        if rule == "next":
            beside["source_detector_accuracy"] = baselines.source_detector_accuracy(label, same, source)
        else:
            beside["length_detector_accuracy"] = baselines.length_detector_accuracy(predictions.rows, label)
    return scores, beside


def _lines(evaluation: Evaluation) -> Iterator[str]:
    s, b = evaluation.scores, evaluation.baselines
    rows = f"{evaluation.rows:,} held-out rows of up to {evaluation.length} tokens"
    yield f"{evaluation.run}, update {evaluation.step}: {rows}"
    yield f"  {'masked words':<26}{'model':>9}   without context"
    yield (
        f"  {'loss (nats)':<26}{s['mlm_loss']:>9.3f}   {b['unigram_loss']:.3f} corpus unigrams,"
        f" {b['document_count_loss']:.3f} counts of the document"
    )
    yield f"  {'perplexity':<26}{s['mlm_perplexity']:>9.1f}   {np.exp(b['unigram_loss']):.1f} corpus unigrams"
    yield f"  {'accuracy':<26}{s['mlm_accuracy']:>9.1%}   {b['most_frequent_accuracy']:.1%} most frequent token"
    if "nsp_accuracy" in s:
        by_length = "length_detector_accuracy" in b
        detector = "length" if by_length else "source"
        yield "  sentence order" if by_length else "  sentence pairs"
        yield (
            f"  {'accuracy':<26}{s['nsp_accuracy']:>9.1%}   {b['majority_accuracy']:.1%} majority label,"
            f" {b[f'{detector}_detector_accuracy']:.1%} {detector} detector"
        )
        yield f"  {'balanced, within a source':<26}{s['nsp_balanced_same_source']:>9.1%}   50.0% chance"

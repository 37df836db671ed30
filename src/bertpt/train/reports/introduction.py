"""What TensorBoard shows of a pre-training run before its first update, and of its held-out sentences later."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bertpt.config import Config, as_yaml
from bertpt.data.rows.baselines import store_unigrams, unigram_entropy
from bertpt.data.stage import SPLITS
from bertpt.data.tokens.store import TokenStore
from bertpt.train.reports.board import HELDOUT, TRAIN, Board, code, table
from bertpt.train.reports.graph import shapes_of, traced
from bertpt.train.reports.samples import Sample


def introduce(board: Board, config: Config, store: TokenStore, majority: float | None) -> None:
    """Configuration, corpus, graph, hyper-parameters, and the lines that losses and accuracies are measured by.

    Args:
        board: of the run.
        config: of the run.
        store: what it is trained on.
        majority: share of the commoner label among the held-out pairs; ``None`` without pairs.
    """
    board.text("run/config", code(as_yaml(config)))
    board.text("run/corpus", corpus_table(store))
    board.layout()
    if not board.start:
        board.graph(traced(config, shapes_of(config, store.vocab_size)))
    pairs = [] if majority is None else [(HELDOUT, "nsp_accuracy")]
    shown = [(HELDOUT, "mlm_loss"), (HELDOUT, "mlm_accuracy"), *pairs, (TRAIN, "tokens_per_second")]
    board.hyperparameters(hyperparameters(config, store), shown)
    shares = store_unigrams(store)
    board.constants("unigram", {"mlm_loss": unigram_entropy(shares), "mlm_accuracy": float(shares.max())})
    words = len(shares) - len(store.special_ids)
    chance = {"mlm_loss": math.log(words), "mlm_accuracy": 1 / words}
    board.constants(
        "chance", chance if majority is None else chance | {"nsp_loss": math.log(2), "nsp_accuracy": majority}
    )


def hyperparameters(config: Config, store: TokenStore) -> dict[str, bool | float | str]:
    """The few settings by which runs mostly differ."""
    model, train = config.model, config.train
    return {
        "layers": model.num_hidden_layers,
        "hidden": model.hidden_size,
        "heads": model.num_attention_heads,
        "vocabulary": store.vocab_size,
        "dropout": model.hidden_dropout_prob,
        "pairs": config.pairs.rule,
        "mask rate": config.masking.rate,
        "optimizer": train.optimizer.kind,
        "lr": train.optimizer.lr,
        "weight decay": train.optimizer.weight_decay,
        "schedule": train.schedule.kind,
        "updates": sum(phase.steps for phase in train.phases),
        "length": " ".join(str(phase.length) for phase in train.phases),
        "rows per update": " ".join(str(phase.batch_size) for phase in train.phases),
        "seed": float(train.seed),
    }


def corpus_table(store: TokenStore) -> str:
    """The figures of the token store, in Markdown."""
    counts, labels = store.manifest["counts"], store.source_labels
    rows: list[list[object]] = [["vocabulary", f"{store.vocab_size:,} entries", ""]]
    for name, key in (
        ("documents", "documents"),
        ("sentences", "sentences"),
        ("tokens", "tokens"),
        ("text, bytes", "text_bytes"),
        ("documents of one sentence", "documents_of_one_sentence"),
        ("documents too short", "documents_too_short"),
        ("sentences cut", "sentences_cut"),
    ):
        rows.append([name, *(f"{counts[split][key]:,}" for split in SPLITS)])
    rows.append(["tokens a word", *(f"{counts[split]['tokens_per_word']:.2f}" for split in SPLITS)])
    rows.append(["unknown tokens", *(f"{counts[split]['unknown_share']:.3%}" for split in SPLITS)])
    for label in labels:
        by_source = [counts[split]["documents_by_source"].get(label, 0) for split in SPLITS]
        rows.append([f"documents of {label}", *(f"{count:,}" for count in by_source)])
    return table(["", "trained on", "held out"], rows)


def samples_table(samples: Sequence[Sample]) -> str:
    """Sentences, the word behind [MASK] and the model's guesses, in Markdown."""
    rows = [[sample.text, sample.original, sample.filled.said()] for sample in samples]
    return table(["held-out sentence", "the word", "the model's guesses"], rows)

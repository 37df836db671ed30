"""Tiny tasks: generated files, an encoder of random weights on disk, and configurations that train in a second."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from interop_helpers import save_theirs, their_model
from train_helpers import merged

from bertpt.config import FinetuneConfig, validate_finetune
from bertpt.interop.finetuning import read_start
from bertpt.predict.tasks import TaskPredictor, labelled_texts
from bertpt.predict.texts import Text
from bertpt.tasks.evaluation import TaskEvaluation
from bertpt.tasks.finetune import finetune


def silent(_: str) -> None:
    """Say nothing."""


def labelled(count: int, labels: Sequence[str], seed: int = 0) -> list[tuple[str, str]]:
    """Texts of letters and their label: the n-th label has many of the n-th letter."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        index = number % len(labels)
        words = [draw.choice("uvwxyz") for _ in range(draw.randint(1, 6))] + ["abcdefgh"[index]] * 4
        draw.shuffle(words)
        rows.append((" ".join(words), labels[index]))
    draw.shuffle(rows)
    return rows


def write_tsv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] | None = ("text", "label")) -> Path:
    """Rows between tabs, without quotes."""
    lines = [*([header] if header else []), *rows]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


def encoder(folder: Path, architecture: str = "BertForPreTraining", **changes: Any) -> Path:
    """A random model of transformers; made once in a folder."""
    place = folder / f"encoder-{architecture}"
    return place if place.is_dir() else save_theirs(their_model(architecture, **changes), place)


def plain_task(folder: Path, **sections: Any) -> dict[str, Any]:
    """Two classes of generated texts in ``folder``, as plain data of a configuration."""
    for split, count, seed in (("train", 48, 0), ("dev", 24, 1), ("test", 24, 2)):
        if not (folder / f"{split}.tsv").is_file():
            write_tsv(folder / f"{split}.tsv", labelled(count, ["no", "yes"], seed))
    value: dict[str, Any] = {
        "name": "t",
        "runs_dir": str(folder / "runs"),
        "task": "classification",
        "from": str(folder / "encoder-BertForPreTraining"),
        "data": {split: str(folder / f"{split}.tsv") for split in ("train", "dev", "test")},
        "train": {
            "epochs": 4,
            "batch_size": 10,
            "lr": 5e-3,
            "max_length": 32,
            "device": "cpu",
            "log_every": 1,
        },
    }
    return merged(value, sections)


def task_config(folder: Path, **sections: Any) -> FinetuneConfig:
    """:func:`plain_task`, checked, with its encoder there."""
    encoder(folder)
    return validate_finetune(plain_task(folder, **sections))


def fit(config: FinetuneConfig, *, overwrite: bool = False, lines: list[str] | None = None) -> TaskEvaluation:
    """Train it; ``lines`` gets what is said."""
    say = silent if lines is None else lines.append
    return finetune(config, read_start(config, say=say), overwrite=overwrite, say=say, progress=False)


def predicted(run: Path, texts: Sequence[str], *, say: Callable[[str], None] = silent) -> list[dict[str, Any]]:
    """What a run of classification says of texts."""
    predictor = TaskPredictor.open(run, "classification", "sentiment")
    examples = labelled_texts([Text(f"text {number}", text) for number, text in enumerate(texts)], predictor.facts)
    return list(predictor.predict(examples, say=say))

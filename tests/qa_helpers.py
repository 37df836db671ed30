"""Tiny question answering: the question names a letter, the answer is the word of the context that begins with it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from task_helpers import encoder
from train_helpers import merged

from bertpt.config import FinetuneConfig, validate_finetune


def squad(*paragraphs: tuple[str, list[dict[str, Any]]], version: str = "1.1") -> dict[str, Any]:
    """Plain data in the layout of SQuAD; each paragraph is a context and its questions."""
    data = [{"title": "t", "paragraphs": [{"context": text, "qas": qas} for text, qas in paragraphs]}]
    return {"version": version, "data": data}


def qa(name: str, question: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    """One question; each answer is a text and where it begins."""
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": given, **more}


def write_squad(path: Path, *paragraphs: tuple[str, list[dict[str, Any]]], version: str = "1.1") -> Path:
    """:func:`squad` in a file."""
    path.write_text(json.dumps(squad(*paragraphs, version=version), ensure_ascii=False), encoding="utf-8")
    return path


def lettered(count: int, seed: int, *, impossible: bool = False) -> list[tuple[str, list[dict[str, Any]]]]:
    """Contexts of four words and two questions: the word with a, with b. One has no answer there if so wanted."""
    draw = random.Random(seed)
    paragraphs = []
    for number in range(count):
        keys = ["a", "b", *draw.sample("cdefgh", 2)]
        missing = draw.choice("ab") if impossible else None
        words = {("i" if key == missing else key): draw.choice("uvwxyz") + draw.choice("uvwxyz") for key in keys}
        context = " ".join(key + words[key] for key in draw.sample(sorted(words), 4))
        asked = [
            qa(f"{number}-{key}", " ".join(key * 4), is_impossible=True)
            if key == missing
            else qa(f"{number}-{key}", " ".join(key * 4), (key + words[key], context.index(key + words[key])))
            for key in "ab"
        ]
        paragraphs.append((context, asked))
    return paragraphs


def plain_qa(folder: Path, **sections: Any) -> dict[str, Any]:
    """The generated task in ``folder``, as plain data of a configuration."""
    for split, count, seed in (("train", 200, 0), ("dev", 20, 1), ("test", 20, 2)):
        if not (folder / f"{split}.json").is_file():
            write_squad(folder / f"{split}.json", *lettered(count, seed))
    value: dict[str, Any] = {
        "name": "t",
        "runs_dir": str(folder / "runs"),
        "task": "qa",
        "from": str(encoder(folder)),
        "data": {split: str(folder / f"{split}.json") for split in ("train", "dev", "test")},
        "answers": {"max_answer_length": 8},
        "train": {
            "epochs": 10,
            "batch_size": 16,
            "lr": 5e-3,
            "dropout": 0.0,
            "max_length": 24,
            "max_query_length": 6,
            "doc_stride": 6,
            "device": "cpu",
            "log_every": 10,
        },
    }
    return merged(value, sections)


def qa_config(folder: Path, **sections: Any) -> FinetuneConfig:
    """:func:`plain_qa`, checked."""
    return validate_finetune(plain_qa(folder, **sections))

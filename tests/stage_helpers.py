"""Tiny corpora for tests of the stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertpt.config import Config, validate
from bertpt.data.corpus.documents import Document, DocumentWriter
from bertpt.files import MANIFEST, OWN_HASH, fingerprint, staged_directory, write_json, write_manifest

LM_SOTU = Path(__file__).resolve().parents[2] / "shared" / "data" / "lm_sotu"


def make_config(data_dir: Path, **sections: Any) -> Config:
    """A configuration over ``data_dir``; ``corpus`` and ``tokenizer`` given as dicts."""
    value: dict[str, Any] = {
        "name": "test",
        "data_dir": str(data_dir),
        "corpus": {"name": "c", "sources": [{"kind": "files", "path": "text"}]},
        "tokenizer": {"vocab_size": 200},
        "train": {"phases": [{"steps": 1}]},
    }
    for name, section in sections.items():
        value[name] = value.get(name, {}) | section
    return validate(value)


def put_documents(data_dir: Path, train: Sequence[str | Document], heldout: Sequence[str | Document] = ()) -> Path:
    """Write a finished documents folder, as the download stage would leave it."""
    directory = data_dir / "c" / "documents"
    splits = {"train": train, "heldout": heldout or train[:2]}
    made = {
        split: [d if isinstance(d, Document) else Document(d, "text", f"d{i}") for i, d in enumerate(documents)]
        for split, documents in splits.items()
    }
    key = fingerprint([[document.text for document in documents] for documents in made.values()])
    with staged_directory(directory) as aside:
        for split, documents in made.items():
            with DocumentWriter(aside, split, group_bytes=2**20) as writer:
                for document in documents:
                    writer.add(document)
        write_manifest(aside, stage="download", key=key, inputs={}, settings={}, counts={})
    return directory


def wordy_documents(count: int, seed: int = 0) -> list[str]:
    """Documents of made-up words in natural proportions, with accents, numbers and punctuation."""
    draw = random.Random(seed)
    syllables = [c + v for c in ["b", "d", "k", "l", "m", "n", "p", "r", "s", "t", "ž", "th"] for v in "aeioué"]
    words = ["".join(draw.choices(syllables, k=draw.choice([1, 2, 2, 3, 4]))) for _ in range(1500)]
    weights = [1 / (rank + 1) for rank in range(len(words))]

    def sentence() -> str:
        chosen = draw.choices(words, weights, k=draw.randint(4, 14))
        chosen[0] = chosen[0].capitalize()
        return " ".join(chosen) + draw.choice([".", "?", "!", f", {draw.randint(0, 2000)}."])

    return ["\n".join(" ".join(sentence() for _ in range(draw.randint(1, 5))) for _ in range(3)) for _ in range(count)]


def sign_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write a changed manifest with the hash of what it says now."""
    own = {key: value for key, value in manifest.items() if key != OWN_HASH}
    write_json(directory / MANIFEST, own | {OWN_HASH: fingerprint(own)})

"""``bertpt finetune``: opens the weights that ``from`` names and hands them to the task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bertpt.config import FinetuneConfig
from bertpt.interop.foreign import read_vocabulary
from bertpt.interop.pretrained import load_pretrained
from bertpt.progress import say as say_line
from bertpt.tasks.start import Start

RANDOM = "random"


def read_start(config: FinetuneConfig, *, say: Callable[[str], None] = say_line) -> Start:
    """The weights that ``from`` names; for ``random`` none, with the vocabulary (and shape) of ``like``.

    Raises:
        RequestError: nothing of the kind is there, or it is damaged.
    """
    place = Path(config.from_ if config.from_ != RANDOM else str(config.like))
    files = ("tokenizer.json", "vocab.txt")
    if config.model is not None and any((place / name).is_file() for name in files):
        vocabulary = read_vocabulary(place)
        return Start(RANDOM, config.model, {}, vocabulary.tokens, vocabulary.normalising)
    found = load_pretrained(place, say=say)
    for note in found.notes:
        say(f"{place}: {note}")
    if config.from_ == RANDOM:
        return Start(RANDOM, config.model or found.model, {}, found.tokens, found.normalising)
    return Start(str(place), found.model, found.weights, found.tokens, found.normalising)

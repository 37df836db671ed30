"""``bertpt pretrain`` with ``model.init_from``: opens the weights and hands them to the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bertpt.config import Config
from bertpt.interop.pretrained import load_pretrained
from bertpt.progress import say as say_line
from bertpt.train import pretrain as training
from bertpt.train.initial import InitialWeights
from bertpt.train.rundir import Run, weights_are_gone


def read_initial(config: Config, *, say: Callable[[str], None] = say_line) -> InitialWeights | None:
    """The weights that ``model.init_from`` names, ``None`` when it is not set.

    Raises:
        RequestError: nothing of the kind is there, or it is damaged.
    """
    place = config.model.init_from
    if place is None:
        return None
    found = load_pretrained(Path(place), say=say)
    for note in found.notes:
        say(f"{place}: {note}")
    return InitialWeights(place, found.model, found.weights, found.open_tokenizer())


def pretrain(
    config: Config, *, overwrite: bool = False, say: Callable[[str], None] = say_line, progress: bool = True
) -> Run:
    """Train from scratch or from ``model.init_from``; see :func:`bertpt.train.pretrain.pretrain`."""
    gone = weights_are_gone(config)
    if gone is not None and not overwrite:
        say(f"{config.model.init_from}: not there any more; {gone.directory} goes on from its own checkpoint")
    initial = None if gone is not None and not overwrite else read_initial(config, say=say)
    return training.pretrain(config, initial=initial, overwrite=overwrite, say=say, progress=progress)

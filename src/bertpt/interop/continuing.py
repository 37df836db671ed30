"""``bertpt pretrain`` with ``model.init_from``: opens the weights and hands them to the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bertpt.config import Config
from bertpt.interop.pretrained import load_pretrained
from bertpt.progress import say as say_line
from bertpt.train import pretrain as training
from bertpt.train.initial import InitialWeights
from bertpt.train.rundir import Run, open_run, weights_are_gone

PAIR_HEAD = "cls.seq_relationship."


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
    if any(name.startswith(PAIR_HEAD) for name in found.weights) and (line := _other_pairs(config, Path(place))):
        say(line)
    return InitialWeights(place, found.model, found.weights, found.open_tokenizer())


def _other_pairs(config: Config, place: Path) -> str | None:
    """A line when the head for pairs was trained on pairs of another rule; a BERT of others on next sentences."""
    runs = [folder for folder in (place, *place.parents[:2]) if (folder / "config.yaml").is_file()]
    before, now = open_run(runs[0]).config.pairs.rule if runs else "next", config.pairs.rule
    if now in ("none", before):
        return None
    return (
        f"{place}: its head for pairs was trained under pairs.rule={before} and goes on under {now}: a label means"
        " something else now, so expect it to begin near chance"
    )


def pretrain(
    config: Config, *, overwrite: bool = False, say: Callable[[str], None] = say_line, progress: bool = True
) -> Run:
    """Train from scratch or from ``model.init_from``; see :func:`bertpt.train.pretrain.pretrain`."""
    gone = weights_are_gone(config)
    if gone is not None and not overwrite:
        say(f"{config.model.init_from}: not there any more; {gone.directory} goes on from its own checkpoint")
    initial = None if gone is not None and not overwrite else read_initial(config, say=say)
    return training.pretrain(config, initial=initial, overwrite=overwrite, say=say, progress=progress)

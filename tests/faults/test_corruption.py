"""Changed, cut, emptied and missing files of checkpoints, stores and plans: not one is used unnoticed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_checkpoint import VOCAB, made, updates
from train_helpers import Tiny, quiet

from bertpt.data.locate import documents_dir, finished_store, tokenizer_dir
from bertpt.data.rows.loader import EpochPlans
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import BertptError, RequestError
from bertpt.files import check_hashes, read_manifest
from bertpt.train.checkpoints.checkpoint import newest_checkpoint, open_checkpoint, open_weights
from bertpt.train.checkpoints.saving import save_checkpoint, save_weights

Many = Callable[[int, int], int]
Count = Callable[[str, int], None]
Draw = random.Random


def flip(path: Path, draw: Draw) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut_one(path: Path, draw: Draw) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut(path: Path, draw: Draw) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def empty(path: Path, draw: Draw) -> None:
    path.write_bytes(b"")


def longer(path: Path, draw: Draw) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def zeros(path: Path, draw: Draw) -> None:
    """A block that never reached the disk."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(max(1, len(content) - 64))
    length = min(64, len(content) - at)
    content[at : at + length] = bytes(length) if any(content[at : at + length]) else b"\1" * length
    path.write_bytes(content)


def missing(path: Path, draw: Draw) -> None:
    path.unlink()


DAMAGE = (flip, flip, flip, cut_one, cut, empty, longer, zeros, missing)  # most often the one that nothing else tells


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and the best weights."""
    directory = tmp_path_factory.mktemp("run")
    model, optimizer = made()
    for step in (10, 20):
        updates(model, optimizer, step, step + 1)
        save_checkpoint(directory, step, model, optimizer, {"vocab_size": VOCAB, "starts": [[0]]}, keep=2)
    save_weights(directory / "best", 20, model, {"vocab_size": VOCAB})
    return directory


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_no_damage_to_any_file_of_a_checkpoint_passes(run: Path, many: Many, count: Count) -> None:
    draw, done = Draw(0), 0
    newest = run / "checkpoints" / "step-00000020"
    for path in files(newest):
        content = path.read_bytes()
        for number in range(many(126, 18)):
            DAMAGE[number % len(DAMAGE)](path, draw)
            said: list[str] = []
            checkpoint = newest_checkpoint(run, said.append)
            assert checkpoint is not None
            assert checkpoint.step == 10, (path, number)
            assert len(said) == 1
            assert "step-00000020" in said[0]
            assert "\n" not in said[0]
            path.write_bytes(content)
            done += 1
    assert open_checkpoint(newest).step == 20
    count("damaged files of checkpoints, all found", done)


def test_no_damage_to_the_best_weights_passes(run: Path, many: Many, count: Count) -> None:
    draw, done = Draw(1), 0
    for path in files(run / "best"):
        content = path.read_bytes()
        for number in range(many(36, 9)):
            DAMAGE[number % len(DAMAGE)](path, draw)
            with pytest.raises(RequestError) as caught:
                open_weights(run / "best")
            assert len(caught.value.faults) == 1
            path.write_bytes(content)
            done += 1
    open_weights(run / "best")
    count("damaged files of best weights, all found", done)


def check(place: Path) -> None:
    """As a stage does before it reads what another has made."""
    if (manifest := read_manifest(place)) is None:
        raise RequestError("unfinished: the stage is run again")
    check_hashes(place, manifest)


@pytest.mark.parametrize("what", ["documents", "tokenizer", "store"])
def test_no_damage_to_what_a_stage_has_made_passes(
    tiny: Tiny, tmp_path: Path, what: str, many: Many, count: Count
) -> None:
    shutil.copytree(tiny.folder / "data", tmp_path / "data")
    config = Tiny(tmp_path).config(tmp_path / "runs")
    place = {"documents": documents_dir, "tokenizer": tokenizer_dir, "store": finished_store}[what](config)
    draw, done = Draw(2), 0
    for path in files(place):
        content = path.read_bytes()
        for number in range(many(18, 3)):
            DAMAGE[number % len(DAMAGE)](path, draw)
            if not path.exists() or path.read_bytes() != content:  # an empty file cannot be emptied
                with pytest.raises(RequestError):
                    check(place)
                done += 1
            path.write_bytes(content)
    count("damaged files of stages, all found", done)


def test_a_damaged_plan_is_made_again(tiny: Tiny, tmp_path: Path, many: Many, count: Count) -> None:
    config = tiny.config(tmp_path)
    store = TokenStore.open(finished_store(config))
    wanted = plan_epoch(store.train, config.pairs, length=32, seed=5, epoch=0)
    draw, done = Draw(3), 0

    def rows() -> bool:
        plans = EpochPlans(store, "train", config.pairs, 32, 5, tmp_path / "plans")
        return bool(np.array_equal(plans.epoch(0), wanted))

    assert rows()
    (path,) = (tmp_path / "plans").glob("*.bin")
    content = path.read_bytes()
    for number in range(many(54, 9)):
        DAMAGE[number % len(DAMAGE)](path, draw)
        assert rows()
        assert path.read_bytes() == content
        done += 1
    count("damaged plans, all made again", done)


def test_a_damaged_copy_of_the_tokenizer_in_a_run_is_named(tiny: Tiny, tmp_path: Path) -> None:
    from bertpt.train.pretrain import pretrain

    short = {"phases": [{"length": 32, "steps": 2, "batch_size": 4}], "schedule": {"warmup_steps": 0}}
    directory = pretrain(tiny.config(tmp_path, train=short), say=quiet).directory
    flip(directory / "tokenizer" / "vocab.txt", Draw(4))
    with pytest.raises(BertptError, match=r"vocab\.txt: damaged: .*; copy it from the tokenizer-\* folder"):
        pretrain(tiny.config(tmp_path, train=short), say=quiet)

"""The thread that writes checkpoints: a copy that later updates leave alone, faults at once, which ones stay."""

from __future__ import annotations

import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_checkpoint import flip, made, steps, updates
from train_helpers import Tiny, quiet

from bertpt.errors import BertptError, RequestError
from bertpt.interop.pretrained import load_pretrained
from bertpt.train import loop
from bertpt.train.checkpoints import saving
from bertpt.train.checkpoints.checkpoint import checkpoints, open_checkpoint, open_weights
from bertpt.train.checkpoints.saving import Keep, Snapshot, Writer, save_checkpoint, write_checkpoint
from bertpt.train.pretrain import pretrain


def test_a_snapshot_is_not_changed_by_later_updates(tmp_path: Path) -> None:
    model, optimizer = made()
    updates(model, optimizer, 0, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    snapshot = Snapshot.of(2, model, optimizer, {})
    updates(model, optimizer, 2, 4)
    path = write_checkpoint(tmp_path, snapshot, Keep(1))
    saved = load_file(path / "model.safetensors")
    assert all(torch.equal(before[name], saved[name]) for name in before)
    assert not all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert {float(t) for n, t in load_file(path / "optimizer.safetensors").items() if n.endswith("/step")} == {2.0}


def test_permanent_ones_are_neither_removed_nor_counted(tmp_path: Path) -> None:
    model, optimizer = made()
    for step in range(1, 13):
        save_checkpoint(tmp_path, step, model, optimizer, {}, keep=2, every=5)
    assert steps(tmp_path) == [5, 10, 11, 12]
    save_checkpoint(tmp_path, 15, model, optimizer, {}, keep=1, every=5)
    assert steps(tmp_path) == [5, 10, 15]
    save_checkpoint(tmp_path, 16, model, optimizer, {}, keep=1)  # no longer asked for
    assert steps(tmp_path) == [16]


def test_what_reads_otherwise_than_it_was_written_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = made()
    updates(model, optimizer, 0, 1)
    save_checkpoint(tmp_path, 1, model, optimizer, {}, keep=1)
    write = saving.save_file

    def rotten(tensors: Any, path: Path, **options: Any) -> None:
        write(tensors, path, **options)
        if path.name == "optimizer.safetensors":
            flip(path, path.stat().st_size - 3)

    monkeypatch.setattr(saving, "save_file", rotten)
    with pytest.raises(BertptError, match=r"step-00000002/optimizer\.safetensors: what was written reads otherwise"):
        save_checkpoint(tmp_path, 2, model, optimizer, {}, keep=1)
    assert steps(tmp_path) == [1]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    open_checkpoint(checkpoints(tmp_path)[0][1])


# --- the writer -----------------------------------------------------------------------------------------------------


def test_jobs_are_done_in_their_order_by_another_thread() -> None:
    done: list[tuple[int, str]] = []
    writer = Writer()
    for number in range(5):
        writer.submit(lambda number=number: done.append((number, threading.current_thread().name)))  # type: ignore[misc]
    writer.wait()
    assert done == [(number, "checkpoints") for number in range(5)]


def test_a_fault_is_raised_once_and_what_waits_behind_it_is_not_done() -> None:
    writer, done, go = Writer(), list[str](), threading.Event()

    def fail() -> None:
        go.wait(20)
        raise BertptError("disk full")

    writer.submit(fail)
    writer.submit(lambda: done.append("behind"))
    go.set()
    with pytest.raises(BertptError, match="disk full"):
        writer.wait()
    writer.wait()
    assert done == []
    writer.submit(lambda: done.append("later"))
    writer.wait()
    assert done == ["later"]


def test_training_goes_on_while_a_slow_disk_takes_a_checkpoint(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of update 4 ends only after update 7 was made."""
    write, made_seven, train_step, count = loop.write_checkpoint, threading.Event(), loop.train_step, 0

    def slow(*arguments: Any) -> Path:
        assert made_seven.wait(60)
        return write(*arguments)

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 8:
            assert checkpoints(tmp_path / "tiny-run") == []
            made_seven.set()
        return train_step(*arguments, **options)

    monkeypatch.setattr(loop, "write_checkpoint", slow)
    monkeypatch.setattr(loop, "train_step", counted)
    run = pretrain(tiny.config(tmp_path, train={"save_every": 4, "keep": 9}), say=quiet).directory
    assert steps(run) == [4, 8, 12, 16, 20]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(5, "Input/output error")])
def test_a_save_that_fails_in_the_background_is_told_by_the_next_update_and_costs_no_other(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    write, count = saving.save_file, 0
    writers: list[saving.Writer] = []

    def watched() -> saving.Writer:
        writers.append(saving.Writer())
        return writers[-1]

    def fails(*arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count > 3:  # three files a checkpoint
            raise error
        write(*arguments, **options)

    train_step, made_updates = loop.train_step, 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal made_updates
        made_updates += 1
        if made_updates == 9:
            begun = time.monotonic()
            while writers[0]._fault is None:
                assert time.monotonic() - begun < 60
                time.sleep(0.01)
        return train_step(*arguments, **options)

    monkeypatch.setattr(saving, "save_file", fails)
    monkeypatch.setattr(loop, "train_step", counted)
    monkeypatch.setattr("bertpt.train.pretrain.Writer", watched)
    with pytest.raises(BertptError, match=rf"step-00000008: cannot write: {error.strerror} \(") as caught:
        pretrain(tiny.config(tmp_path, train={"save_every": 4, "keep": 1}), say=quiet)
    assert caught.value.exit_code == 1
    assert made_updates == 9
    assert steps(tmp_path / "tiny-run") == [4]
    open_checkpoint(checkpoints(tmp_path / "tiny-run")[0][1])
    monkeypatch.undo()
    assert steps(pretrain(tiny.config(tmp_path), say=quiet).directory)[-1] == 20


def test_too_little_room_is_told_before_anything_is_written(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 2**20))
    monkeypatch.setattr(loop, "write_checkpoint", None)
    with pytest.raises(BertptError, match=r"tiny-run: a checkpoint needs \d+\.\d MiB, 1\.0 MiB are free; make room"):
        pretrain(tiny.config(tmp_path, train={"save_every": 4}), say=quiet)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
@pytest.mark.parametrize("what", ["gone", "made a file"])
def test_a_run_whose_directory_vanishes_ends_with_one_line_and_makes_no_half_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    train_step, count = loop.train_step, 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            shutil.move(tmp_path / "tiny-run", tmp_path / "elsewhere")
            if what != "gone":
                (tmp_path / "tiny-run").touch()
        return train_step(*arguments, **options)

    monkeypatch.setattr(loop, "train_step", counted)
    says = r"tiny-run: the run's directory is gone|(metrics\.jsonl|tb): cannot write: Not a directory"
    with pytest.raises(BertptError, match=says) as caught:
        pretrain(tiny.config(tmp_path, train={"save_every": 4}), say=quiet)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "tiny-run").is_dir()


# --- the best -------------------------------------------------------------------------------------------------------


def scored(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> Callable[[], None]:
    """Let the evaluations of a run give these losses."""
    from bertpt.train import pretrain as module

    scores, values = module.heldout_scores, iter(losses)
    monkeypatch.setattr(module, "heldout_scores", lambda found: scores(found) | {"mlm_loss": next(values)})
    return monkeypatch.undo


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 2.0, 5.0, 4.0], 20),  # the first two are of another length, and cannot be compared
        ([3.0, 2.0, 4.0, 4.0], 15),  # of equal ones the first
        ([3.0, 2.0, 4.0, float("nan")], 15),
        ([3.0, 2.0, float("nan"), float("inf")], 10),
        ([float("nan")] * 4, None),
    ],
)
def test_the_weights_of_the_best_evaluation_are_kept_and_nan_is_never_the_best(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float], best: int | None
) -> None:
    scored(monkeypatch, losses)
    run = pretrain(tiny.config(tmp_path, train={"eval_every": 5, "save_every": 5, "keep": 9}), say=quiet).directory
    if best is None:
        assert not (run / "best").exists()
        return
    weights = open_weights(run / "best")
    assert weights.step == best
    assert weights.state["best"]["step"] == best
    saved = load_file(run / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    kept = weights.tensors("model")
    assert kept.keys() == saved.keys()
    assert all(torch.equal(kept[name], saved[name]) for name in saved)


def test_the_best_is_a_place_to_predict_from_and_to_go_on_from(tiny: Tiny, tmp_path: Path) -> None:
    run = pretrain(tiny.config(tmp_path, train={"eval_every": 5}), say=quiet).directory
    found = load_pretrained(run / "best", say=quiet)
    assert {"mlm", "nsp"} == found.heads
    flip(run / "best" / "model.safetensors", 300)
    with pytest.raises(RequestError, match=r"model\.safetensors: damaged"):
        load_pretrained(run / "best", say=quiet)


def test_the_best_so_far_is_known_after_a_stop(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step, count = loop.train_step, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 18:
            raise MemoryError
        return train_step(*arguments, **options)

    monkeypatch.setattr(loop, "train_step", killed)
    scored(monkeypatch, [3.0, 2.0, 4.0, 1.0])
    settings = {"eval_every": 5, "save_every": 5}
    with pytest.raises(MemoryError):
        pretrain(tiny.config(tmp_path, train=settings), say=quiet)
    monkeypatch.undo()
    scored(monkeypatch, [4.5])
    run = pretrain(tiny.config(tmp_path, train=settings), say=quiet).directory
    assert open_weights(run / "best").step == 15

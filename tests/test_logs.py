"""The log of a run: no step twice, numbers that are none stay visible, no carriage return without a terminal."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_helpers import Tiny, quiet

from bertpt.errors import RequestError
from bertpt.train.pretrain import pretrain
from bertpt.train.reports.logs import MetricsLog, read_metrics


def board(run: Path, tag: str, kind: str = "train") -> list[tuple[int, float]]:
    events = EventAccumulator(str(run / "tb" / kind), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_steps_after_the_checkpoint_are_logged_once_though_they_come_again(tmp_path: Path) -> None:
    for start, end, value in ((0, 9, 1.0), (5, 12, 2.0), (5, 7, 3.0), (7, 14, 4.0)):
        with MetricsLog(tmp_path, start, 14) as log:
            for step in range(start + 1, end + 1):
                log.write("train", step, {"mlm_loss": value})
        time.sleep(1.1)  # TensorBoard orders files by the second
    wanted = [(step, 1.0 if step <= 5 else 3.0 if step <= 7 else 4.0) for step in range(1, 15)]
    assert [(entry["step"], entry["mlm_loss"]) for entry in read_metrics(tmp_path / "metrics.jsonl")] == wanted
    assert board(tmp_path, "learning/mlm_loss") == wanted


def test_an_evaluation_that_was_logged_before_a_kill_and_comes_again_stands_once(tmp_path: Path) -> None:
    """A signal put it off, the next start made it, and was killed before it could save that."""
    for again, value in ((False, 1.0), (True, 2.0), (True, 3.0)):
        with MetricsLog(tmp_path, 4 if again else 0, 9, again=again) as log:
            if not again:
                log.write("train", 4, {"mlm_loss": value})
            log.write("heldout", 4, {"mlm_loss": value})
        time.sleep(1.1)  # TensorBoard orders files by the second
    found = [(entry["kind"], entry["mlm_loss"]) for entry in read_metrics(tmp_path / "metrics.jsonl")]
    assert found == [("train", 1.0), ("heldout", 3.0)]
    assert board(tmp_path, "learning/mlm_loss") == [(4, 1.0)]
    assert board(tmp_path, "learning/mlm_loss", "heldout") == [(4, 3.0)]


def test_a_number_that_is_none_is_seen_as_such(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    with MetricsLog(tmp_path, 0, 3) as log:
        for step, value in enumerate((1.0, math.nan, math.inf), 1):
            log.write("train", step, {"mlm_loss": value})
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=refuse)["mlm_loss"] for line in lines] == [1.0, None, None]
    (_, one), (_, nan), (_, infinite) = board(tmp_path, "learning/mlm_loss")
    assert (one, infinite) == (1.0, math.inf)
    assert math.isnan(nan)


@pytest.mark.parametrize("line", [b"[1]", b"{}", b'{"kind": "train", "step": "7"}', b'{"step": 7', b"\xff", b""])
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    whole = b'{"kind": "train", "step": 1}\n'
    log.write_bytes(whole + line + b"\n" + whole)
    with pytest.raises(RequestError, match=r"metrics\.jsonl:2: not a.*: the line is damaged; take it out"):
        read_metrics(log)
    log.write_bytes(whole + line)  # a kill while writing
    assert read_metrics(log) == [{"kind": "train", "step": 1}]


def test_the_logged_loss_does_not_depend_on_how_a_batch_is_cut(tiny: Tiny, tmp_path: Path) -> None:
    # Without dropout, which is drawn for each micro-batch; rounding grows with the updates, so few are compared.
    model, schedule = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, {"warmup_steps": 0}
    logged = []
    for cut in (1, 2, 8):
        phases = [{"length": 32, "steps": 4, "batch_size": 32, "accumulate": cut}]
        config = tiny.config(tmp_path / str(cut), model=model, train={"phases": phases, "schedule": schedule})
        entries = read_metrics(pretrain(config, say=quiet).directory / "metrics.jsonl")
        logged.append([(entry["mlm_loss"], entry["nsp_loss"]) for entry in entries if entry["kind"] == "train"])
    assert len(logged[0]) == 4
    for other in logged[1:]:
        assert other == [pytest.approx(pair, abs=1e-4) for pair in logged[0]]


def test_training_into_a_file_leaves_whole_lines(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertpt.progress.INTERVAL", 0.0)
    pretrain(tiny.config(tmp_path), progress=True)
    err = capsys.readouterr().err
    assert "pretrain: 20 of 20 (100%) updates" in err
    assert "\r" not in err
    assert "\x1b" not in err
    assert err.endswith("\n")

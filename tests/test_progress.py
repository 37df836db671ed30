from __future__ import annotations

import io
import logging
import re

import pytest

from bertpt.progress import Progress, counted, peak_memory, tell_details


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_plain_lines_come_at_an_interval() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress("prepare", unit="documents", total=40, stream=out, clock=clock) as progress:
        for _ in range(30):
            clock.now += 1
            progress.add()
        progress.note("a note")
    assert out.getvalue().split("\n") == [
        "prepare: 10 of 40 (25%) documents, 1/s, about 30 s left",
        "prepare: 20 of 40 (50%) documents, 1/s, about 20 s left",
        "prepare: 30 of 40 (75%) documents, 1/s, about 10 s left",
        "a note",
        "",
    ]
    assert "\r" not in out.getvalue()


def test_short_or_hidden_work_leaves_nothing() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress("x", stream=out, clock=clock) as progress:
        progress.add(1000)
    with Progress("x", stream=out, clock=clock, shown=False) as progress:
        clock.now += 100
        progress.add(1000)
    assert out.getvalue() == ""


def test_the_bar_counts_small_totals_exactly_and_shortens_large_ones() -> None:
    out = Terminal()
    with Progress("pretrain", unit="updates", total=3000, start=10, stream=out) as progress:
        progress.add(1)
    assert " 11/3000 " in out.getvalue()
    out = Terminal()
    with Progress("download", unit="bytes", total=2_000_000, stream=out) as progress:
        progress.add(2_000_000)
    assert "2.00M" in out.getvalue()


def test_a_terminal_gets_a_bar_and_notes_through_ones_own_printer() -> None:
    out, said = Terminal(), list[str]()
    with Progress("prepare", unit="documents", total=4, stream=out) as progress:
        progress.add(3)
        progress.note("a note", said.append)
        progress.note("another")
    assert "\r" in out.getvalue()
    assert "75%" in out.getvalue()
    assert " documents/s" in out.getvalue()
    assert "another\n" in out.getvalue()
    assert said == ["a note"]


@pytest.mark.parametrize(
    ("number", "things", "said"),
    [
        (0, "files", "0 files"),
        (1, "files", "1 file"),
        (1234, "files", "1,234 files"),
        (1, "empty documents dropped", "1 empty document dropped"),
        (1, "copies of held-out documents dropped", "1 copy of held-out documents dropped"),
        (1, "bytes that are not UTF-8 replaced", "1 byte that is not UTF-8 replaced"),
        (1, "lines that stand in more documents", "1 line that stands in more documents"),
        (1, "files hold blank lines", "1 file holds blank lines"),
        (1, "repeated", "1 repeated"),
    ],
)
def test_one_thing_is_told_in_the_singular(number: int, things: str, said: str) -> None:
    assert counted(number, things) == said


def test_peak_memory_is_in_bytes_and_grows_with_what_is_held() -> None:
    before = peak_memory()
    if before is None:
        pytest.skip("this system does not tell")
    assert 2**23 < before < 2**37
    held = bytearray(before + 2**26)
    held[::4096] = b"\1" * len(held[::4096])
    after = peak_memory()
    assert after is not None
    assert after > before + 2**25


def test_a_bar_inside_another_goes_and_the_outer_one_stays() -> None:
    out = Terminal()
    with Progress("pretrain", unit="updates", total=2, stream=out) as outer:
        outer.add(1)
        with Progress("evaluate", total=3, stream=out) as inner:
            inner.add(3)
        outer.add(1)
    screen = out.getvalue()
    assert "evaluate: " in screen
    assert "evaluate" not in screen.rpartition("\r")[2]
    assert "pretrain: 100%" in screen.rpartition("\r")[2]


def test_details_stand_above_a_bar_with_time_and_module_and_end_when_told(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("bertpt.somewhere")
    log.debug("unheard")
    tell_details(True)
    tell_details(True)
    log.debug("planned %d rows", 3)
    tell_details(False)
    log.debug("unheard")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"\d\d:\d\d:\d\d bertpt\.somewhere: planned 3 rows\n", err)

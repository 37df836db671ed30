"""How many faults: a part by default, all of them under ``make test-faults``; what was done is counted and shown."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

FULL = os.environ.get("BERTPT_FAULTS") == "full"


@pytest.fixture
def many() -> Callable[[int, int], int]:
    """Picks the first number for the full suite, the second by default."""
    return lambda full, part: full if FULL else part


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Adds to the figures at the end."""
    return lambda what, number: record_property(f"faults: {what}", number)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    figures: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, number in getattr(report, "user_properties", ()):
            if name.startswith("faults: ") and report.when == "call":
                figures[name.removeprefix("faults: ")] += number
    if figures:
        terminalreporter.section("faults")
        for name, number in sorted(figures.items()):
            terminalreporter.line(f"{number:6,} {name}")

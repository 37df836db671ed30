"""A signal that comes at a known moment of a run."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from torch import Tensor

from bertpt.data.rows.loader import BatchStream
from bertpt.train import loop


class StopAt:
    """Stands for ``StopFlag``: a signal comes while update ``step`` (or the evaluation after it) is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def after(self, step: int) -> None:
        made = loop.train_step
        count = 0

        def counted(*arguments: Any, **options: Any) -> Tensor:
            nonlocal count
            skipped = made(*arguments, **options)
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return skipped

        self.monkeypatch.setattr(loop, "train_step", counted)

    def during_evaluation(self, batch: int) -> None:
        rows = BatchStream.rows
        count = 0

        def counted(stream: BatchStream, begin: int, size: int) -> Any:
            nonlocal count
            if stream.plans.split == "heldout":
                count += 1
                if count == batch:
                    os.kill(os.getpid(), signal.SIGTERM)
            return rows(stream, begin, size)

        self.monkeypatch.setattr(BatchStream, "rows", counted)

    def never(self) -> None:
        self.monkeypatch.undo()

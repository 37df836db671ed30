"""What ``bertpt doctor`` finds, said while the run goes on: a line for each fault, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bertpt.config import Config
from bertpt.data.tokens.store import TokenStore
from bertpt.train.doctor.evidence import Evidence, TextFacts
from bertpt.train.doctor.rules import diagnose
from bertpt.train.reports.logs import read_metrics


class Watch:
    """Looks at the log after each evaluation: some milliseconds for a log of 10,000 lines.

    Args:
        directory: of the run.
        config: of the run.
        store: the tokens.
        say: gets the lines.
    """

    def __init__(self, directory: Path, config: Config, store: TokenStore, say: Callable[[str], None]) -> None:
        self.directory, self.config, self.say = directory, config, say
        self.text = TextFacts.of(store, config)
        self._said: set[str] = set()

    def __call__(self, step: int, scores: Mapping[str, float]) -> None:
        """Say what is new after an evaluation, whose scores are not logged yet."""
        log = self.directory / "metrics.jsonl"
        metrics = read_metrics(log) if log.is_file() else []
        metrics.append({"kind": "heldout", "step": step, **scores})
        for finding in diagnose(Evidence.of(self.config, self.text, metrics, {})):
            if finding.kind == "fault" and finding.name not in self._said:
                self._said.add(finding.name)
                self.say(
                    f"update {step}: warning: {finding.what} ({finding.name}: {finding.evidence}); {finding.advice}"
                )

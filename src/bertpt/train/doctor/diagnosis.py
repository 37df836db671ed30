"""``bertpt doctor``: what a run's records show, and whether this device computes attention right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertpt.train.doctor.attention import AttentionCheck, check_attention
from bertpt.train.doctor.evidence import Evidence, read_evidence
from bertpt.train.doctor.rules import Finding, diagnose
from bertpt.train.pretrain import choose_device, scoring_precision


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found of a run.

    Attributes:
        attention: of this device, at the run's shape and precision.
        unknown: what could not be looked at, and why.
    """

    run: str
    step: int
    total: int
    loss: float
    heldout_loss: float | None
    entropy: float
    uniform: float
    findings: list[Finding]
    attention: AttentionCheck
    unknown: list[str]

    @property
    def healthy(self) -> bool:
        """Whether nothing but notes was found."""
        return all(finding.kind == "note" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; a NaN becomes ``None``."""
        value = asdict(self) | {"healthy": self.healthy}
        value["loss"] = None if math.isnan(self.loss) else self.loss
        return value

    def text(self) -> str:
        """For people."""
        return "\n".join(_lines(self))


def examine(directory: Path, *, data_dir: Path | None = None) -> Diagnosis:
    """Diagnose a pre-training run, finished or not.

    Args:
        data_dir: where the corpora lie, if not where the run's configuration says.

    Raises:
        RequestError: no run, nothing logged yet, or the data it was trained on are gone.
    """
    evidence = read_evidence(directory, data_dir)
    config = evidence.config
    device = choose_device(config.train.device)
    precision = scoring_precision(config.train.precision, device)
    attention = check_attention(config.model, device, precision, max(phase.length for phase in config.train.phases))
    found = diagnose(evidence)
    if not attention.passed:
        found.insert(0, _attention_differs(attention))
    heldout = [entry["mlm_loss"] for entry in evidence.heldout]
    return Diagnosis(
        run=str(directory),
        step=evidence.step,
        total=evidence.total,
        loss=evidence.mean("mlm_loss"),
        heldout_loss=heldout[-1] if heldout else None,
        entropy=evidence.text.entropy,
        uniform=math.log(evidence.text.vocab_size),
        findings=found,
        attention=attention,
        unknown=list(_unknown(evidence)),
    )


def _attention_differs(check: AttentionCheck) -> Finding:
    return Finding(
        "attention-differs",
        "fault",
        f"attention on {check.device} is not what its formula gives",
        f"largest differences in {check.dtype}: {check.forward:.1e} in training, {check.evaluation:.1e} in evaluation,"
        f" {check.gradient:.1e} of the gradient; up to {check.tolerance:.0e} is rounding",
        "a kernel of this torch and this device is wrong; what was trained with it is not to be trusted",
        "set train.precision: fp32 or train.device: cpu to compare, and use another release of torch or of the driver",
    )


def _unknown(evidence: Evidence) -> Iterator[str]:
    if evidence.text.copies_share is None:
        yield "repeated documents (the documents folder is gone)"
    if not evidence.values("data_wait_share", 0, 1):
        yield "waiting for data (an older run, that did not log it)"
    if len(evidence.heldout) < 3:
        yield "overfitting (fewer than three evaluations)"


def _lines(found: Diagnosis) -> Iterator[str]:
    heldout = "" if found.heldout_loss is None else f", {found.heldout_loss:.3f} held out"
    yield (
        f"{found.run}: update {found.step:,} of {found.total:,}; masked-word loss {found.loss:.3f} in training"
        f"{heldout}; unigram entropy {found.entropy:.3f}, ln V {found.uniform:.3f}"
    )
    for finding in found.findings:
        yield from finding.lines()
    if found.healthy:
        yield "healthy: no fault was found"
    if found.unknown:
        yield f"not looked at: {'; '.join(found.unknown)}"

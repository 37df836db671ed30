"""The configurations of ``bertpt finetune``, by task."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bertpt.config.finetune.classification import ClassificationConfig
from bertpt.config.finetune.common import FREE_KEYS, FinetuneConfig
from bertpt.config.validate import fault_line
from bertpt.errors import RequestError

__all__ = ["FREE_KEYS", "KINDS", "FinetuneConfig", "validate_finetune"]

KINDS: dict[str, type[FinetuneConfig]] = {
    "classification": ClassificationConfig,
    "sentiment": ClassificationConfig,
}


def validate_finetune(data: Mapping[str, Any]) -> FinetuneConfig:
    """Check plain data against the schema of its task and for impossible combinations.

    Raises:
        RequestError: all faults together, one line each, with the nearest valid name.
    """
    kind = data.get("task")
    if not isinstance(kind, str) or kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        what = "is required, one of" if kind is None else f"{kind!r} is not one of"
        raise RequestError(f"task: {what} {', '.join(KINDS)}{hint}")
    try:
        config = KINDS[kind].model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestError(list(dict.fromkeys(fault_line(fault, KINDS[kind]) for fault in errors))) from None
    if faults := list(config.impossible()):
        raise RequestError(faults)
    return config

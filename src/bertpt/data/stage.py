"""What the stages share: both parts of a corpus, a result, its key, and what to do with a directory that is there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertpt.errors import RequestError
from bertpt.files import FORMAT_VERSION, fingerprint, read_manifest

_log = logging.getLogger(__name__)

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")


@dataclass(frozen=True, slots=True)
class StageResult:
    """The directory that a stage made or found finished (``skipped``), and its manifest."""

    directory: Path
    manifest: Mapping[str, Any]
    skipped: bool


def stage_key(stage: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Fingerprint of all that shapes a stage's result; a finished directory of equal key is up to date."""
    return fingerprint({"stage": stage, "format": FORMAT_VERSION, "settings": settings, "inputs": inputs})


def existing(directory: Path, overwrite: bool) -> dict[str, Any] | None:
    """The manifest of a finished directory, ``None`` when the stage has to run.

    Raises:
        RequestError: ``directory`` holds files but no intact manifest, and ``overwrite`` is false.
    """
    if overwrite or not directory.exists():
        return None
    manifest = read_manifest(directory)
    if manifest is None and (not directory.is_dir() or any(directory.iterdir())):
        raise RequestError(f"{directory}: holds files but no manifest; remove it, or replace it with --overwrite")
    if manifest is not None:
        _log.debug("%s: finished before, key %s", directory, str(manifest.get("key"))[:8])
    return manifest


def differences(
    manifest: Mapping[str, Any], settings: Mapping[str, Any], inputs: Mapping[str, str], prefix: str = ""
) -> list[str]:
    """What differs from a finished directory's manifest, each as ``"key: old -> new"``."""
    old, new = _flat(manifest["settings"], prefix), _flat(settings, prefix)
    lines = [
        f"{key}: {_shown(old, key)} -> {_shown(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key, _MISSING) != new.get(key, _MISSING)
    ]
    before = manifest["inputs"]
    return lines + [
        f"content of {name}: {before.get(name, 'none')[:8]} -> {inputs.get(name, 'none')[:8]}"
        for name in dict.fromkeys([*before, *inputs])
        if before.get(name) != inputs.get(name)
    ]


_MISSING = object()


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _flat(value: Any, prefix: str) -> dict[str, Any]:
    """Nested dicts and lists as one dict with dotted keys."""
    items: list[tuple[str, Any]]
    if isinstance(value, Mapping):
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list):
        items = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in items:
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return flat

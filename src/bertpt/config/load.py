"""From a file or shipped name, ``extends:`` and ``--set`` to one checked :class:`Config`."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from bertpt.config.finetune import FinetuneConfig, validate_finetune
from bertpt.config.schema import Config, Model
from bertpt.config.validate import validate
from bertpt.config.yaml import dump_yaml, parse_yaml
from bertpt.errors import RequestError

Checked = TypeVar("Checked")
DEFAULT = "base"
_SHOWN = 80  # letters of an assignment in a fault
_TAKE_AWAY = ("corpus.sources=", "model.init_from=")


def _shipped_folder() -> Path:
    """``configs/`` in the wheel, or in the checkout of an editable install."""
    inside = Path(str(resources.files("bertpt"))) / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "configs"


def shipped_configs() -> dict[str, Path]:
    """Name -> file of the configurations that come with bertpt (in the wheel, or in a checkout)."""
    return {path.stem: path for path in sorted(_shipped_folder().glob("*.yaml"))}


def shipped_corpora() -> dict[str, Path]:
    """Name -> file of the corpora that a configuration can extend: ``extends: corpora/wikitext-103``."""
    return {f"corpora/{path.stem}": path for path in sorted(_shipped_folder().glob("corpora/*.yaml"))}


def shipped_tasks() -> dict[str, Path]:
    """Name -> file of the configurations of ``bertpt finetune``: ``tasks/sst2``."""
    return {f"tasks/{path.stem}": path for path in sorted(_shipped_folder().glob("tasks/*.yaml"))}


def find_config(name: str | Path, beside: Path | None = None) -> Path:
    """The file that ``name`` means: a path (relative to ``beside`` first), else a shipped name.

    Raises:
        RequestError: neither; the nearest shipped names are offered.
    """
    for path in ([beside / name] if beside else []) + [Path(name)]:
        with contextlib.suppress(OSError):  # a name that is too long
            if path.is_file():
                return path
    shipped = shipped_configs() | shipped_corpora() | shipped_tasks()
    stem = Path(name).as_posix().removesuffix(".yaml")
    if stem in shipped:
        return shipped[stem]
    near = difflib.get_close_matches(stem[:200], shipped, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join(shipped_configs())
    asked = "extends:" if beside else "--config"
    place = Path(name)
    shown = str(name) if len(str(name)) <= 200 else f"{str(name)[:200]}..."
    if len(stem) < 200 and place.is_dir():
        raise RequestError(f"{asked} {name}: is a folder; a YAML file or a shipped config is expected: {known}")
    raise RequestError(f"{asked} {shown}: no such file or shipped config; {hint}shipped: {known}")


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Deep merge: mappings key by key, everything else replaced by ``over``."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _extend(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """:func:`_merge`, less what belonged to replaced sources or weights.

    Other sources are another corpus: it must not inherit the name (and the folder) of the one replaced, nor its
    fallback. Weights to start from have a shape: that of the configuration extended is not meant for them.
    """
    merged = _merge(base, over)
    corpus = over.get("corpus")
    if isinstance(corpus, dict) and "sources" in corpus:
        for key in {"name", "fallback"} - corpus.keys():
            merged["corpus"].pop(key, None)
    model = over.get("model")
    if isinstance(model, dict) and model.get("init_from") is not None:
        for key in set(Model.shape_keys) - model.keys():
            merged["model"].pop(key, None)
    return merged


def _read(path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in chain:
        raise RequestError(f"{path}: extends itself: {' -> '.join(p.name for p in (*chain, path))}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: cannot be read: {error}") from error
    value = parse_yaml(text, str(path))
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise RequestError(f"{path}: a mapping of keys is expected, not {type(value).__name__}")
    if "extends" not in value:
        return value
    parents = value.pop("extends")
    base: dict[str, Any] = {}
    for parent in parents if isinstance(parents, list) else [parents]:
        if not isinstance(parent, str):
            raise RequestError(f"{path}: extends: a file or a shipped name is expected, not {parent!r}")
        base = _extend(base, _read(find_config(parent, beside=path.parent), (*chain, path.resolve())))
    # A name and a description are of one file alone.
    return _extend(base, {"name": path.stem, "description": ""} | value)


def _override(assignment: str) -> tuple[list[str], Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise RequestError(f"--set {assignment}: section.key=value is expected, e.g. --set train.seed=1")
    return key.strip().split("."), parse_yaml(text, f"--set {key}")


def _apply(data: dict[str, Any], assignment: str) -> dict[str, Any]:
    keys, value = _override(assignment)
    change = _change(data, keys, value, ())
    # A key inside one source leaves the corpus its name; a new list of sources does not.
    within = keys[:2] == ["corpus", "sources"] and len(keys) > 2
    return _merge(data, change) if within else _extend(data, change)


def _change(node: Any, keys: Sequence[str], value: Any, above: tuple[str, ...]) -> Any:
    """What to merge over ``node`` so that ``value`` stands at ``keys`` below it; lists are given whole."""
    if not keys:
        return value
    head, rest = keys[0], keys[1:]
    if not isinstance(node, list):
        return {head: _change(node.get(head) if isinstance(node, dict) else None, rest, value, (*above, head))}
    if not head.isdecimal() or int(head) >= len(node):
        items = f"has items 0 to {len(node) - 1}" if node else "is empty"
        raise RequestError(f"--set {'.'.join((*above, *keys))}: {'.'.join(above)} {items}")
    old = node[int(head)]
    new = _change(old, rest, value, (*above, head))
    new = _merge(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
    return [new if index == int(head) else item for index, item in enumerate(node)]


def load_config(name: str | Path = DEFAULT, overrides: Sequence[str] = (), **places: str | Path | None) -> Config:
    """Read, merge and check a configuration.

    Args:
        name: a path, or the name of a shipped config with or without ``.yaml``.
        overrides: ``section.key=value`` assignments, applied in order; values are YAML. Items of a list
            are named by number: ``train.phases.0.steps=10``; mappings are merged, lists replaced.
        places: ``data_dir`` / ``runs_dir`` in place of the configured ones, unless ``None``.

    Raises:
        RequestError: a missing file, broken YAML, or one line for each faulty key.
    """
    return _load(name, overrides, places, validate)


def load_finetune(name: str | Path, overrides: Sequence[str] = (), **places: str | Path | None) -> FinetuneConfig:
    """Read, merge and check a configuration of ``bertpt finetune``; see :func:`load_config`.

    Args:
        name: a path, or a shipped name (``tasks/sst2``).
        overrides: ``section.key=value`` assignments.
        places: ``runs_dir`` in place of the configured one, unless ``None``.

    Raises:
        RequestError: a missing file, broken YAML, or one line for each faulty key.
    """
    return _load(name, overrides, places, validate_finetune)


def _load(
    name: str | Path,
    overrides: Sequence[str],
    places: Mapping[str, str | Path | None],
    check: Callable[[Mapping[str, Any]], Checked],
) -> Checked:
    path = find_config(name)
    data = {"name": path.stem} | _read(path)
    # Other sources take away the name of those they replace, weights the shape: what is set as well must come after.
    for assignment in sorted(overrides, key=lambda text: not text.replace(" ", "").startswith(_TAKE_AWAY)):
        data = _apply(data, assignment)
    data |= {key: str(value) for key, value in places.items() if value is not None}
    try:
        return check(data)
    except RequestError as error:
        raise RequestError([f"{_origin(fault, path.name, overrides)}: {fault}" for fault in error.faults]) from error


def _origin(fault: str, file: str, overrides: Sequence[str]) -> str:
    """Where the user said what is faulty: the last --set of that key, of one that the line speaks of; else the file."""
    key = fault.partition(":")[0]
    for spoken_of in (False, True):
        for assignment in reversed(overrides):
            given = assignment.partition("=")[0].strip()
            same = f"{key}.".startswith(f"{given}.") or f"{given}.".startswith(f"{key}.")
            if same or (spoken_of and re.search(rf"(?<![\w.]){re.escape(given)}(?![\w.])", fault)):
                return f"--set {assignment if len(assignment) <= _SHOWN else f'{assignment[: _SHOWN - 3]}...'}"
    return file


def plain(config: BaseModel) -> dict[str, Any]:
    """A section as plain data, with the names that YAML uses."""
    return config.model_dump(mode="json", by_alias=True)


def as_yaml(config: BaseModel) -> str:
    """The resolved configuration as YAML that loads to the same configuration."""
    return dump_yaml(plain(config))

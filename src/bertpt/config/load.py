"""From a file or shipped name, ``extends:`` and ``--set`` to one checked :class:`Config`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from bertpt.config.check import impossible
from bertpt.config.schema import Config
from bertpt.config.yaml import dump_yaml, parse_yaml
from bertpt.errors import RequestError

DEFAULT = "base"


def shipped_configs() -> dict[str, Path]:
    """Name -> file of the configurations that come with bertpt (in the wheel, or in a checkout)."""
    inside = Path(str(resources.files("bertpt"))) / "configs"
    folder = inside if inside.is_dir() else Path(__file__).parents[3] / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str | Path, beside: Path | None = None) -> Path:
    """The file that ``name`` means: a path (relative to ``beside`` first), else a shipped name.

    Raises:
        RequestError: neither; the nearest shipped names are offered.
    """
    for path in ([beside / name] if beside else []) + [Path(name)]:
        if path.is_file():
            return path
    shipped = shipped_configs()
    stem = str(name).removesuffix(".yaml")
    if stem in shipped:
        return shipped[stem]
    near = difflib.get_close_matches(stem, shipped, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise RequestError(f"--config {name}: no such file, and no shipped config of that name; {hint}shipped: {', '.join(shipped)}")


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Deep merge: mappings key by key, everything else replaced by ``over``."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    corpus = over.get("corpus")
    if isinstance(corpus, dict) and "sources" in corpus and isinstance(merged.get("corpus"), dict):
        # Other sources are another corpus: it must not inherit the name (and the folder) of the one replaced,
        # nor its fallback.
        for key in {"name", "fallback"} - corpus.keys():
            merged["corpus"].pop(key, None)
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
    parent = value.pop("extends", None)
    if parent is None:
        return value
    if not isinstance(parent, str):
        raise RequestError(f"{path}: extends: a file or a shipped name is expected, not {parent!r}")
    base = _read(find_config(parent, beside=path.parent), (*chain, path.resolve()))
    return _merge(base, {"name": path.stem} | value)


def _override(assignment: str) -> tuple[list[str], Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise RequestError(f"--set {assignment}: section.key=value is expected, e.g. --set train.seed=1")
    return key.strip().split("."), parse_yaml(text, f"--set {key}")


def _apply(data: dict[str, Any], assignment: str) -> dict[str, Any]:
    keys, value = _override(assignment)
    node: Any = data
    path: list[str | int] = []
    for key in keys[:-1]:
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                raise RequestError(f"--set {'.'.join(keys)}: {'.'.join(map(str, path))} has items 0 to {len(node) - 1}")
            node = node[int(key)]
        else:
            node = node.get(key) if isinstance(node, dict) else None
        path.append(key)
    if isinstance(node, list):
        last = keys[-1]
        if not last.isdigit() or int(last) >= len(node):
            raise RequestError(f"--set {'.'.join(keys)}: {'.'.join(map(str, path))} has items 0 to {len(node) - 1}")
    if any(isinstance(_at(data, keys[: i + 1]), list) for i in range(len(keys) - 1)):
        return _set_in_list(data, keys, value)
    for key in reversed(keys):
        value = {key: value}
    return _merge(data, value)


def _at(data: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if isinstance(data, list):
            data = data[int(key)]
        elif isinstance(data, dict):
            data = data.get(key)
        else:
            return None
    return data


def _set_in_list(data: dict[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    def rebuilt(node: Any, rest: Sequence[str]) -> Any:
        if not rest:
            return value
        if isinstance(node, list):
            index = int(rest[0])
            return [rebuilt(item, rest[1:]) if i == index else item for i, item in enumerate(node)]
        return {**(node or {}), rest[0]: rebuilt((node or {}).get(rest[0]), rest[1:])}

    return dict(rebuilt(data, keys))


# --- faults, one line each ------------------------------------------------------------------------------------


def _known_keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(location: Sequence[str | int]) -> type[BaseModel] | None:
    """The section that a fault's location lies in, to offer its key names."""
    from typing import get_args

    def models(annotation: Any) -> Iterable[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        for inner in get_args(annotation):
            yield from models(inner)

    current: list[type[BaseModel]] = [Config]
    for part in location:
        if isinstance(part, int):
            continue
        nearer = [m for model in current for n, f in model.model_fields.items() if part in (n, f.alias) for m in models(f.annotation)]
        tagged = [model for model in current if _tag(model) == part]
        current = tagged or nearer
    return current[0] if len(current) == 1 else None


def _tag(model: type[BaseModel]) -> str | None:
    from typing import get_args

    kind = model.model_fields.get("kind")
    return get_args(kind.annotation)[0] if kind else None


def _line(error: Any) -> str:
    # A discriminated union puts the chosen kind into the location; the user's key path has no such part.
    path = list(error["loc"])
    for index in range(len(path) - 1, 0, -1):
        if isinstance(path[index - 1], int) and isinstance(path[index], str) and path[0] == "corpus" and index == 3:
            del path[index]
    key = ".".join(str(part) for part in path)
    if error["type"] == "extra_forbidden":
        model = _model_at(error["loc"][:-1])
        known = _known_keys(model) if model else []
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.5)
        return f"{key}: unknown key; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}")
    if error["type"] == "missing":
        return f"{key}: is required"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{key}: {message}, not {error['input']!r}"


def _without(data: Any, location: Sequence[str | int]) -> Any:
    """``data`` less the value at ``location`` (parts that are union tags are skipped)."""
    if not location:
        return data
    head, rest = location[0], location[1:]
    if isinstance(data, list) and isinstance(head, int) and head < len(data):
        return [_without(item, rest) if i == head and rest else item for i, item in enumerate(data) if rest or i != head]
    if isinstance(data, dict):
        if head not in data:
            return _without(data, rest)
        if not rest:
            return {k: v for k, v in data.items() if k != head}
        return {**data, head: _without(data[head], rest)}
    return data


_MINIMAL: dict[str, Any] = {
    "name": "faulty",
    "corpus": {"sources": [{"kind": "docstrings"}]},
    "train": {"phases": [{"steps": 1}]},
}


def validate(data: dict[str, Any]) -> Config:
    """Check plain data against the schema and for impossible combinations.

    Raises:
        RequestError: all faults together, one line each, with the nearest valid name.
    """
    faults: list[str] = []
    for attempt in range(3):
        try:
            config = Config.model_validate(data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if attempt == 0:
                faults = [_line(e) for e in errors]
                # Take the faulty values out, so that impossible combinations of the rest are told in the same breath.
                for e in sorted(errors, key=lambda e: len(e["loc"]), reverse=True):
                    data = _without(data, e["loc"])
            else:  # the section needs what was taken out: let a minimal one stand in for it
                data = {k: v for k, v in data.items() if k in Config.model_fields} | {
                    part: _MINIMAL[part] for part in {str(e["loc"][0]) for e in errors} & _MINIMAL.keys()
                }
        else:
            faults += impossible(config)
            if not faults:
                return config
            break
    raise RequestError(faults)


def load_config(name: str | Path = DEFAULT, overrides: Sequence[str] = (), **places: str | Path | None) -> Config:
    """Read, merge and check a configuration.

    Args:
        name: a path, or the name of a shipped config with or without ``.yaml``.
        overrides: ``section.key=value`` assignments, applied in order; values are YAML. Items of a list
            are named by number: ``train.phases.0.steps=10``.
        places: ``data_dir`` / ``runs_dir`` in place of the configured ones, unless ``None``.

    Raises:
        RequestError: a missing file, broken YAML, or one line for each faulty key.
    """
    path = find_config(name)
    data = {"name": path.stem} | _read(path)
    for assignment in overrides:
        data = _apply(data, assignment)
    data |= {key: str(value) for key, value in places.items() if value is not None}
    try:
        return validate(data)
    except RequestError as error:
        raise RequestError([f"{path.name}: {fault}" for fault in error.faults]) from error


def plain(config: BaseModel) -> dict[str, Any]:
    """A section as plain data, with the names that YAML uses."""
    return config.model_dump(mode="json", by_alias=True)


def as_yaml(config: Config) -> str:
    """The resolved configuration as YAML that loads to the same configuration."""
    return dump_yaml(plain(config))

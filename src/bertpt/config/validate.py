"""From plain data to a checked :class:`Config`: all faults together, one line each, with the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bertpt.config.check import SHOWN, impossible
from bertpt.config.schema import Config
from bertpt.errors import RequestError

# What stands in for a faulty section while the other sections are checked for impossible combinations.
_MINIMAL: dict[str, Any] = {
    "name": "faulty",
    "corpus": {"sources": [{"kind": "docstrings"}]},
    "train": {"phases": [{"steps": 1}]},
}


def validate(data: Mapping[str, Any]) -> Config:
    """Check plain data against the schema and for impossible combinations.

    Raises:
        RequestError: all faults together, one line each, with the nearest valid name.
    """
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        faults = [fault_line(fault) for fault in errors]
        faults += _impossible_besides(dict(data), errors)
    else:
        faults = [fault.line for fault in impossible(config)]
        if not faults:
            return config
    raise RequestError(faults)


def _impossible_besides(data: dict[str, Any], errors: Sequence[ErrorDetails]) -> list[str]:
    """Impossible combinations of the keys that are not faulty by themselves."""
    faulty = {key for error in errors for key in _doubtful_keys(error)}
    # Later items first, so that the numbers of earlier ones hold.
    for error in reversed(errors):
        data = _without(data, error["loc"])
    for _ in _MINIMAL:
        try:
            config = Config.model_validate(data)
        except ValidationError as error:  # a section needs what was taken out
            broken = {str(fault["loc"][0]) for fault in error.errors(include_url=False)}
            data = {key: value for key, value in data.items() if key not in broken}
            data |= {key: value for key, value in _MINIMAL.items() if key in broken}
            faulty |= broken
        else:
            return [fault.line for fault in impossible(config) if not _touches(fault.keys, faulty)]
    return []


def _touches(keys: Sequence[str], faulty: set[str]) -> bool:
    return any(f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in keys for b in faulty)


def _doubtful_keys(error: ErrorDetails) -> list[str]:
    """The faulty key; for an unknown one also the key that was probably meant."""
    path = _key_path(error["loc"])
    near = _near_key(error, Config) if error["type"] == "extra_forbidden" else None
    return [".".join(path)] + ([".".join([*path[:-1], near])] if near else [])


def _without(data: Any, location: Sequence[str | int]) -> Any:
    """``data`` less the key at ``location``, or less the list of a faulty item: no other item changes its number."""
    while location and isinstance(location[-1], int):
        location = location[:-1]
    if not location:
        return data
    head, rest = location[0], location[1:]
    if isinstance(data, list) and isinstance(head, int):
        return [_without(item, rest) if i == head else item for i, item in enumerate(data)]
    if isinstance(data, dict):
        if head not in data:  # the tag of a union, which is no key of the data
            return _without(data, rest)
        if not rest:
            return {key: value for key, value in data.items() if key != head}
        return {**data, head: _without(data[head], rest)}
    return data


# --- one line for one fault -----------------------------------------------------------------------------------


def fault_line(error: ErrorDetails, root: type[BaseModel] = Config) -> str:
    """What is wrong with one key of a ``root``, and what to write instead."""
    key = ".".join(_key_path(error["loc"]))
    shown = repr(error["input"])
    shown = shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 3]}..."
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        near = _near_key(error, root)
        hint = f"did you mean {near}?" if near else f"known here: {', '.join(_known(error, root))}"
        return f"{key}: unknown key; {hint}"
    if kind == "missing":
        return f"{key}: is required"
    if kind == "literal_error":
        return f"{key}: {shown} is not one of {context['expected']}{_did_you_mean(error['input'], context['expected'])}"
    if kind == "union_tag_invalid":
        tags = context["expected_tags"]
        return f"{key}.kind: {context['tag']!r} is not one of {tags}{_did_you_mean(context['tag'], tags)}"
    if kind == "union_tag_not_found":
        return f"{key}.kind: is required: files, hub, wikidump, wheel or docstrings"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key}: a mapping of keys is expected, not {shown}"
    return f"{key}: {error['msg'][0].lower() + error['msg'][1:]}, not {shown}"


def _did_you_mean(value: Any, expected: str) -> str:
    names = [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


_BRANCH = re.compile(r"(str|int|float|bool|constrained-\w+|(function|literal)\b.*|.*\[.*\])")


def _key_path(location: Sequence[str | int]) -> list[str]:
    """The key path as the user writes it: less the kind of the source, which stands behind its number."""
    path = list(location)
    if len(path) > 3 and path[0] == "corpus" and isinstance(path[2], int) and path[3] in _KINDS:
        del path[3]
    while len(path) > 1 and _BRANCH.fullmatch(str(path[-1])):  # of a key that may be of several types
        del path[-1]
    return [str(part) for part in path]


def _known(error: ErrorDetails, root: type[BaseModel]) -> list[str]:
    model = _section_at(error["loc"][:-1], root)
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _near_key(error: ErrorDetails, root: type[BaseModel]) -> str | None:
    near = difflib.get_close_matches(str(error["loc"][-1]), _known(error, root), n=1, cutoff=0.5)
    return near[0] if near else None


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)


def _section_at(location: Sequence[str | int], root: type[BaseModel]) -> type[BaseModel] | None:
    """The section of a ``root`` that a fault's location lies in."""
    current: list[type[BaseModel]] = [root]
    for part in location:
        if isinstance(part, int):
            continue
        tagged = [model for model in current if _kind(model) == part]
        current = tagged or [
            inner
            for model in current
            for name, field in model.model_fields.items()
            if part in (name, field.alias)
            for inner in _sections(field.annotation)
        ]
    return current[0] if len(current) == 1 else None


def _kind(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field and get_args(field.annotation) else None


_KINDS = {
    kind
    for model in _sections(Config.model_fields["corpus"].annotation)
    for field in model.model_fields.values()
    for inner in _sections(field.annotation)
    if (kind := _kind(inner)) is not None
}

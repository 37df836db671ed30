"""Safe YAML in which numbers are numbers: ``1e-4`` is a float, ``on`` a word, a key stands once.

A configuration may come from a stranger: nothing in it can run, and neither depth nor aliases of aliases make a
small file endless work.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from bertpt.errors import RequestError

MAX_DEPTH = 50  # the schema has 6
MAX_VALUES = 100_000  # aliases counted as often as they are used


class _Loader(yaml.SafeLoader):
    """YAML 1.2 rules for numbers, booleans and dates.

    PyYAML follows 1.1: '1e-4' is a string, 'on' True, '010' 8, '1:30' 90, and '2026-01-01' no word.
    """


_REPLACED = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("float", "bool", "int", "timestamp"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _REPLACED]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# The first that fits counts: an int is also written like a float.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?!0[0-9_]+$)(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = key_node.value
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key!r} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _values(node: Node, depth: int, known: dict[int, int]) -> int:
    """How many values a node stands for, aliases written out."""
    if id(node) in known:
        return known[id(node)]
    if depth > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=node.start_mark)
    inner: list[Node] = []
    if isinstance(node, SequenceNode):
        inner = node.value
    elif isinstance(node, MappingNode):
        inner = [part for pair in node.value for part in pair]
    known[id(node)] = 1 + sum(_values(part, depth + 1, known) for part in inner)
    if known[id(node)] > MAX_VALUES:
        raise yaml.MarkedYAMLError(
            problem=f"more than {MAX_VALUES:,} values, aliases written out", problem_mark=node.start_mark
        )
    return known[id(node)]


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _values(node, 1, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def parse_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Raises:
        RequestError: names ``where``, line and column.
    """
    try:
        return _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise RequestError(f"{where}{place}: not valid YAML: {error.problem or error}") from error
    except RecursionError as error:
        raise RequestError(f"{where}: not valid YAML: more than {MAX_DEPTH} levels") from error
    except (yaml.YAMLError, ValueError) as error:
        raise RequestError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block."""


# YAML 1.1 takes these for line ends; only double quotes keep them.
_ODD_LINE_ENDS = re.compile("[\r\x85\u2028\u2029]")


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # A word that our reader, unlike the emitter's YAML 1.1, takes for a number: '0E0'.
    other = any(pattern.match(value) for _, pattern in _Loader.yaml_implicit_resolvers.get(value[:1], []))
    style = '"' if other or _ODD_LINE_ENDS.search(value) else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(value: Any) -> str:
    """Plain data as YAML, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)

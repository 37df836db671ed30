"""Safe YAML in which numbers are numbers: ``1e-4`` is a float, ``on`` a word, a key stands once."""

from __future__ import annotations

import re
from typing import Any

import yaml

from bertpt.errors import RequestError


class _Loader(yaml.SafeLoader):
    """YAML 1.2 rules for floats and booleans (PyYAML follows 1.1: '1e-4' a string, 'on' True)."""


_REPLACED = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _REPLACED]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = key_node.value
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"key {key!r} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Raises:
        RequestError: names ``where``, line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise RequestError(f"{where}{place}: not valid YAML: {error.problem or error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise RequestError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block."""


# YAML 1.1 takes these for line ends; only double quotes keep them.
_ODD_LINE_ENDS = re.compile("[\r\x85\u2028\u2029]")


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = '"' if _ODD_LINE_ENDS.search(value) else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(value: Any) -> str:
    """Plain data as YAML, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)

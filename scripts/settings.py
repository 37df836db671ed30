"""Write docs/settings.md: every command and every setting, from the program and the schema themselves.

python scripts/settings.py            # writes it
python scripts/settings.py --check    # exit code 1 when it is out of date
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import annotated_types
import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from bertpt.cli.main import app
from bertpt.config import Config
from bertpt.config.finetune import KINDS

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Commands and settings

Made by `python scripts/settings.py` from the program itself; a test keeps it up to date.

* [Commands](#commands): as `bertpt COMMAND --help` says.
* [Settings of a configuration](#settings-of-a-configuration), and of [fine-tuning](#settings-of-fine-tuning). On the
  command line: `--set section.key=value`, e.g. `--set train.optimizer.lr=2e-4` or `--set train.phases.0.steps=1000`.
  `bertpt config show NAME` prints a configuration with all of them, `bertpt config schema` a JSON Schema for editors.
"""


# --- commands -------------------------------------------------------------------------------------------------


def commands(group: Any, path: tuple[str, ...] = ("bertpt",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def of_command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [named(parameter).strip("`") for parameter in parameters if parameter.param_type_name == "argument"]
    yield f"### {' '.join(path)}\n"
    yield f"`{' '.join([*path, *arguments, '[options]'])}`\n"
    yield f"{' '.join((command.help or '').split())}\n"
    yield from table(("argument, option", "meaning"), [(named(p), cell(p.help or "")) for p in parameters])
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    if examples:
        yield "Example" + ("s" * (len(examples) > 1)) + ": " + "; ".join(f"`{line}`" for line in examples) + "\n"


def named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name).upper() + ("..." if parameter.nargs != 1 else "")
        return f"`{name}`" if parameter.required else f"`[{name}]`"
    flags = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = default not in (None, False, 0, ()) and not callable(default)
    return f"{flags} (default: {default})" if shown else flags


HEADER = ("key", "values", "default", "meaning")


# --- settings -------------------------------------------------------------------------------------------------


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, values, default, meaning of each setting, sections opened."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = [part for part in parts(field.annotation) if is_section(part)]
        listed = typing.get_origin(bare(field.annotation)) is list
        meaning = cell(field.description or "")
        if len(inner) == 1:
            if meaning or listed:
                yield key, "list" if listed else "section", "", meaning
            yield from settings(inner[0], f"{key}.N." if listed else f"{key}.")
        else:
            yield key, values(field), default(field), meaning


def bare(annotation: Any) -> Any:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def parts(annotation: Any) -> list[Any]:
    """The types that a union, list or annotation is made of."""
    annotation = bare(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list):
        return [part for argument in typing.get_args(annotation) for part in parts(argument)]
    return [annotation]


def is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def values(field: FieldInfo) -> str:
    """What may be written: a type with its bounds, or the words that are allowed."""
    return cell(" or ".join(dict.fromkeys(kinds(field.annotation, field.metadata))))


def kinds(annotation: Any, metadata: Any = ()) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Annotated:
        yield from kinds(typing.get_args(annotation)[0], [*metadata, *annotation.__metadata__])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from kinds(part, metadata)
    elif typing.get_origin(annotation) is typing.Literal:
        yield ", ".join(f"`{word}`" for word in typing.get_args(annotation))
    elif typing.get_origin(annotation) in (list, tuple, dict):
        inner = [kind for part in typing.get_args(annotation) for kind in kinds(part)]
        yield f"{typing.get_origin(annotation).__name__} of {', '.join(dict.fromkeys(inner))}"
    elif is_section(annotation):
        yield annotation.__name__
    elif annotation is type(None):
        yield "null"
    else:
        bounds = "".join(f" {sign} {value:,}" for sign, value in limits(metadata))
        yield {str: "text", bool: "true, false"}.get(annotation, annotation.__name__) + bounds


SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def limits(metadata: Any) -> Iterator[tuple[str, float]]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from limits(item.metadata)
        for name, sign in SIGNS.items():
            value = getattr(item, name, None) if isinstance(item, annotated_types.BaseMetadata) else None
            if value is not None and abs(value) < 2**31 - 1:
                yield sign, value


def default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined or isinstance(field.default, BaseModel):
        return "must be given" if field.is_required() else ""
    if field.default is None:
        return ""
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{yaml.safe_dump(value, default_flow_style=True).removesuffix(chr(10)).removesuffix('...').strip()}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(header)} |"
        yield "|" + "---|" * len(header)
        for row in rows:
            yield f"| {' | '.join(row)} |"
        yield ""


def sections(model: type[BaseModel]) -> Iterator[str]:
    """A table for each section, kinds of sources each in one of their own."""
    rows = [(f"`{key}`", kind, preset, meaning) for key, kind, preset, meaning in settings(model)]
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        name = row[0].strip("`").partition(".")
        groups.setdefault(name[0] if name[1] or "section" in row[1] else "", []).append(row)
    for name, group in groups.items():
        yield f"### {name}\n" if name else ""
        yield from table(HEADER, group)
    for kind in sources(model):
        yield f"### a source of kind {typing.get_args(kind.model_fields['kind'].annotation)[0]}\n"
        yield f"{cell(kind.__doc__ or '')}\n"
        yield from table(HEADER, [(f"`{k}`", v, d, m) for k, v, d, m in settings(kind)])


def sources(model: type[BaseModel]) -> list[type[BaseModel]]:
    field = model.model_fields.get("corpus")
    return parts(field.annotation.model_fields["sources"].annotation) if field is not None else []


def page() -> str:
    lines = [HEAD, "## Commands\n"]
    for path, command in commands(typer.main.get_command(app)):
        lines += of_command(path, command)
    lines += ["## Settings of a configuration\n", *sections(Config), "## Settings of fine-tuning\n"]
    lines.append("`task` names the kind; each has these settings, and in its own table what differs.\n")
    kinds_of = {model: [name for name, other in KINDS.items() if other is model] for model in KINDS.values()}
    found = {", ".join(names): list(settings(model)) for model, names in kinds_of.items()}
    shared = [row for row in next(iter(found.values())) if all(row in rows for rows in found.values())]
    lines += table(HEADER, [(f"`{row[0]}`", *row[1:]) for row in shared])
    for names, rows in found.items():
        lines.append(f"### {names}\n")
        lines += table(HEADER, [(f"`{row[0]}`", *row[1:]) for row in rows if row not in shared])
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main() -> int:
    made = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

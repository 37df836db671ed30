"""The floors of the package: who may import whom, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import bertpt

PACKAGE = Path(bertpt.__file__).parent

# A module imports from lower floors and from its own package alone. Packages on one floor never import each other.
FLOORS = {
    "errors": 0.0,
    "signals": 0.02,
    "world": 0.02,
    "locks": 0.05,
    "files": 0.1,
    "progress": 0.1,
    "shell": 0.1,
    "config": 0.2,
    "batch": 1.0,
    "data": 2.0,
    "model": 2.0,
    "train": 3.0,
    "tasks": 4.0,
    "interop": 5.0,
    "predict": 5.2,
    "runs": 5.4,
    "pipeline": 5.5,
    "cli": 6.0,
    "__main__": 6.1,
}
# Folders inside two of them: each imports from those before it alone (and from modules that lie in no folder).
FOLDERS = {
    "data": ["corpus", "tokenizer", "tokens", "rows", "inspect"],
    "train": ["updates", "checkpoints", "reports", "doctor"],
}
LIGHT = [name for name, floor in FLOORS.items() if floor < 1 or floor >= 6]
# Nothing that trains may need them: they are slow to import and have no use on a machine that only trains.
NOT_FOR_TRAINING = {
    *("datasets", "sentencex", "mwparserfromhell", "rensa", "zstandard"),  # preparing
    *("scipy", "sklearn", "transformers"),  # scores and exports
}


class Import(NamedTuple):
    """One import: of which module, and whether it happens when the module is loaded."""

    target: str
    at_load: bool


def imports(source: str, known: set[str]) -> Iterator[Import]:
    """Absolute names of what a module imports, less what only type checkers see."""

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, at_load)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield Import(inner if inner in known else str(node.module), at_load)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_load and not inside)

    yield from walk(ast.parse(source), True)


def part(module: str) -> str:
    """``bertpt.data.store`` -> ``data``."""
    return module.split(".")[1] if "." in module else ""


def breaches(sources: dict[str, str]) -> list[str]:
    """Each import that the floors forbid, as ``importer -> imported``."""
    found = []
    for module, source in sources.items():
        for target, at_load in imports(source, set(sources)):
            if target.split(".")[0] == "torch" and part(module) in LIGHT and at_load:
                found.append(f"{module} -> torch")
            own, other = part(module), part(target)
            if target.split(".")[0] != "bertpt" or not other or own == other:
                continue
            if FLOORS[other] >= FLOORS.get(own, -1):
                found.append(f"{module} -> {target}")
    return found


def folder_breaches(sources: dict[str, str]) -> list[str]:
    """Each import from a folder that comes later, as ``importer -> imported``."""
    found = []
    for module, source in sources.items():
        folders = FOLDERS.get(part(module), [])
        for target, _ in imports(source, set(sources)):
            names = [name.split(".")[2] for name in (module, target) if name.count(".") >= 2]
            if part(module) != part(target) or len(names) < 2 or not set(names) <= set(folders):
                continue
            if folders.index(names[1]) > folders.index(names[0]):
                found.append(f"{module} -> {target}")
    return found


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Everything that loading ``start`` loads."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            # Loading a module loads the packages that it lies in.
            waiting += [module.rpartition(".")[0]] if "." in module else []
            waiting += graph.get(module, ())
    return seen


def loading_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    return {
        module: {target for target, at_load in imports(source, set(sources)) if at_load}
        for module, source in sources.items()
    }


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that come back to themselves by imports at loading."""
    found = []
    for module in graph:
        seen: set[str] = set()
        waiting = list(graph[module])
        while waiting:
            target = waiting.pop()
            if target not in seen:
                seen.add(target)
                waiting += graph.get(target, ())
        if module in seen:
            found.append(module)
    return found


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    def name(path: Path) -> str:
        return ".".join(("bertpt", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")

    return {name(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_stands_on_a_floor(sources: dict[str, str]) -> None:
    assert {part(module) for module in sources} - {""} <= FLOORS.keys()


def test_modules_import_only_from_lower_floors_and_light_ones_load_no_torch(sources: dict[str, str]) -> None:
    assert breaches(sources) == []


def test_folders_import_only_from_those_before_them(sources: dict[str, str]) -> None:
    assert folder_breaches(sources) == []
    found = {(part(name), name.split(".")[2]) for name in sources if name.count(".") >= 3 and part(name) in FOLDERS}
    assert found == {(package, folder) for package, folders in FOLDERS.items() for folder in folders}


def test_there_is_no_circle_of_imports(sources: dict[str, str]) -> None:
    assert cycles(loading_graph(sources)) == []


def test_what_trains_loads_nothing_that_training_does_not_need(sources: dict[str, str]) -> None:
    graph = loading_graph(sources)
    for module in sources:
        if part(module) in ("batch", "model", "train"):
            assert not {name.split(".")[0] for name in reached(module, graph)} & NOT_FOR_TRAINING, module


def test_the_checks_find_what_is_forbidden() -> None:
    sources = {
        "bertpt": "",
        "bertpt.errors": "def f():\n    import bertpt.config\n",
        "bertpt.config": "from bertpt import errors\nimport torch.nn\n",
        "bertpt.cli.main": "def f():\n    import torch\n",
        "bertpt.data": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bertpt.model import bert\n",
        "bertpt.data.a": "from bertpt.data import b\nfrom bertpt.model import bert\n",
        "bertpt.data.b": "from bertpt.data.a import x\n",
        "bertpt.model": "",
        "bertpt.model.bert": "",
        "bertpt.train": "import bertpt.data.a\n",
    }
    assert breaches(sources) == [
        "bertpt.errors -> bertpt.config",
        "bertpt.config -> torch",
        "bertpt.data.a -> bertpt.model.bert",
    ]
    assert cycles(loading_graph(sources)) == ["bertpt.data.a", "bertpt.data.b"]
    upwards = {"bertpt.data.rows.plan": "", "bertpt.data.corpus.lines": "from bertpt.data.rows import plan"}
    assert folder_breaches(upwards) == ["bertpt.data.corpus.lines -> bertpt.data.rows.plan"]
    assert folder_breaches({"bertpt.data.rows.plan": "import bertpt.data.corpus.lines"}) == []
    assert "bertpt.model.bert" in reached("bertpt.train", loading_graph(sources))

"""Documentation text of the running Python installation, read with ``ast``; nothing is imported or run.

Standard library first, then the installed numpy and torch, which bertpt needs anyway: about 3 MB of prose.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from bertpt.config.schema import DocstringsSource
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.errors import BertptError
from bertpt.files import fingerprint

_PACKAGES = ("numpy", "torch")
_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "testing", "idle_test", "__pycache__"})
_LARGEST_FILE = 4 << 20  # bytes; larger ones are generated tables
_CODE = re.compile(r"^\s*(?:>>>|\.\.\. |\.\. |::|:\w+|[-*+|#@$] |\d+[.)] |[-=~^*_+#]{3,}\s*$)", re.MULTILINE)
_ROLE = re.compile(r"(?::[a-z]+(?::[a-z]+)*:)?(`{1,2})~?([^`]+?)(?:\s*<[^<>`]*>)?\1_?")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([\w.-]+)\*{1,2}(?![\w*])")
_WORD = re.compile(r"[(\"'“]*[^\W\d_]+(?:['’-][^\W\d_]+)*[.,;:!?)\"'”]*\Z")
_FEWEST_WORDS = 4
_WORD_SHARE = 0.75  # of what stands between spaces; less is code


def _roots() -> Iterator[tuple[str, Path]]:
    """Prefix of module names and folder of each part, in reading order."""
    yield "", Path(sysconfig.get_path("stdlib"))
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            yield package, Path(next(iter(spec.submodule_search_locations)))


def _modules(prefix: str, root: Path) -> Iterator[tuple[str, Path]]:
    found = ((path.relative_to(root).parts, path) for path in root.rglob("*.py"))
    for parts, path in sorted(found, key=lambda item: item[0]):
        private = prefix and any(part.startswith("_") for part in parts[:-1])  # compilers: long to parse, little prose
        if not private and not _SKIPPED.intersection(parts) and not parts[-1].startswith("test_"):
            names = [*parts[:-1], parts[-1].removesuffix(".py")]
            yield ".".join(name for name in names if name != "__init__"), path


def paragraphs(docstring: str) -> Iterator[str]:
    """Prose of a cleaned docstring; code, lists, tables, headings and parameters are left out."""
    for block in re.split(r"\n[ \t]*\n", docstring):
        lines = block.split("\n")
        if lines[0].startswith((" ", "\t")) or _CODE.search(block):
            continue
        if any(line.startswith((" ", "\t")) for line in lines[1:]):  # parameters, or code under its announcement
            continue
        text = _EMPHASIS.sub(r"\1", _ROLE.sub(r"\2", " ".join(block.split()))).replace("::", ":")
        words = text.split()
        plain = sum(1 for word in words if _WORD.match(word))
        if len(words) >= _FEWEST_WORDS and plain >= _WORD_SHARE * len(words):
            yield text


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, in the order of the file."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        if isinstance(node, (ast.Module, ast.ClassDef, ast.If, ast.Try)):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Entries of ``pydoc_data.topics``, the language reference as a dictionary of strings."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield str(key.value), value.value


def _parse(path: Path) -> ast.Module | None:
    if path.stat().st_size > _LARGEST_FILE:
        return None
    content = path.read_bytes()
    if b'"""' not in content and b"'''" not in content and path.name != "topics.py":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in the code of others
        return ast.parse(content)


def _texts(name: str, tree: ast.Module) -> Iterator[tuple[str, Iterator[str]]]:
    """Document names and their docstrings: one document a module, one a topic of the reference."""
    if name == "pydoc_data.topics":
        for topic, text in _topics(tree):
            yield f"{name}.{topic}", iter([text])
    else:
        yield name, _docstrings(tree)


def fingerprint_inputs(source: DocstringsSource, reading: Reading) -> str:
    """Changes with the version of Python, numpy or torch."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return fingerprint({"kind": "docstrings", "python": python, "packages": versions})


def read(source: DocstringsSource, reading: Reading) -> Iterator[RawDocument]:
    """Yield one document a module, a paragraph a line; a paragraph that was read before is left out.

    Counts ``files``, ``unreadable files`` and ``repeated paragraphs``.

    Raises:
        BertptError: this Python has no source files of its standard library.
    """
    seen: set[str] = set()
    for prefix, root in _roots():
        for module, path in _modules(prefix, root):
            try:
                tree = _parse(path)
            except (SyntaxError, ValueError, RecursionError, OSError):
                reading.counts["unreadable files"] += 1
                continue
            reading.counts["files"] += 1
            name = ".".join(part for part in (prefix, module) if part)
            for title, docstrings in _texts(name, tree) if tree else ():
                found = [paragraph for docstring in docstrings for paragraph in paragraphs(docstring)]
                fresh = [text for text in dict.fromkeys(found) if text not in seen]
                reading.counts["repeated paragraphs"] += len(found) - len(fresh)
                seen.update(fresh)
                if fresh:
                    yield RawDocument(text="\n".join(fresh), name=title)
    if not seen:
        raise BertptError(f"{sysconfig.get_path('stdlib')}: no documentation found; this Python has no source files")

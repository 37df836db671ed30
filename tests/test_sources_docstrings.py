"""Documentation text of Python itself: prose, one document a module, the same in every process."""

from __future__ import annotations

import inspect
import platform
import statistics as module
import time
from pathlib import Path

import pytest

from bertpt.config.schema import DocstringsSource
from bertpt.data.corpus.sources import docstrings
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.errors import BertptError

SOURCE = DocstringsSource(kind="docstrings")


def read_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[RawDocument], Reading]:
    monkeypatch.setattr(docstrings, "_roots", lambda: iter([("", folder)]))
    reading = Reading(folder)
    return list(docstrings.read(SOURCE, reading)), reading


def test_prose_is_kept_and_joined_code_and_lists_are_left_out() -> None:
    text = inspect.cleandoc(
        """Return the mean of the
        given ``data``, see :func:`~statistics.median` and *more*.

        >>> mean([1, 2])
        1.5

        Parameters
        ----------
        data : list
            The numbers that are read.

        Args:
            data: the numbers that are read here.

        - one item of the list of items
        - another item of the list

        f(x, y) -> z, g(a=1, b=2)

        The last paragraph is prose again, as one can see.
        """
    )
    assert list(docstrings.paragraphs(text)) == [
        "Return the mean of the given data, see statistics.median and more.",
        "The last paragraph is prose again, as one can see.",
    ]


def test_modules_are_documents_in_sorted_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.py").write_text('"""The module b does a thing."""\nraise SystemExit(1)\n', encoding="utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text(
        'class A:\n    """A class of things that are there."""\n\n'
        '    def f(self):\n        """Return what is asked for."""\n',
        encoding="utf-8",
    )
    (tmp_path / "c.py").write_text('"""The module b does a thing."""\n', encoding="utf-8")
    (tmp_path / "bad.py").write_text('"""Not Python at all."""\nprint "x"\n', encoding="utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text('"""The tests are not read here."""\n', encoding="utf-8")
    found, reading = read_folder(tmp_path, monkeypatch)
    assert [(document.name, document.text) for document in found] == [
        ("a", "A class of things that are there.\nReturn what is asked for."),
        ("b", "The module b does a thing."),
    ]
    assert reading.counts == {"files": 3, "unreadable files": 1, "repeated paragraphs": 1}


def test_no_source_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BertptError, match="no source files"):
        read_folder(tmp_path, monkeypatch)


@pytest.mark.slow
def test_this_python_gives_megabytes_of_prose_quickly() -> None:
    started = time.perf_counter()
    found = list(docstrings.read(SOURCE, Reading(Path())))
    assert time.perf_counter() - started < 60
    assert sum(len(document.text) for document in found) > 1_500_000
    assert sum(document.text.count("\n") >= 2 for document in found) > 500
    summary = inspect.cleandoc(module.mean.__doc__ or "").partition("\n")[0]
    assert summary in next(document.text for document in found if document.name == "statistics")


def test_the_fingerprint_is_stable_and_follows_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = docstrings.fingerprint_inputs(SOURCE, Reading(Path()))
    assert before == docstrings.fingerprint_inputs(SOURCE, Reading(Path("elsewhere")))
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    assert docstrings.fingerprint_inputs(SOURCE, Reading(Path())) != before

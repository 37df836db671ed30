from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpt.data.corpus.documents import (
    Document,
    DocumentWriter,
    document_of_file,
    documents_by_blank_line,
    documents_by_group,
    documents_by_heading,
    iter_documents,
)
from bertpt.data.corpus.sources.base import RawDocument
from bertpt.errors import RequestError


def pairs(documents: object) -> list[tuple[str, str]]:
    return [(document.name, document.text) for document in documents]  # type: ignore[attr-defined]


@pytest.mark.parametrize("blank", ["", "  ", "\t", "\u00a0", "\u3000", "\u200b", "\ufeff"])
def test_any_blank_line_ends_a_document(blank: str) -> None:
    lines = [blank, "a", "b", blank, blank, "c", blank]
    assert pairs(documents_by_blank_line(lines, "x")) == [("x#1", "a\nb"), ("x#2", "c")]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b c"])))
def test_blank_lines_lose_no_line_and_keep_the_order(lines: list[str]) -> None:
    found = list(documents_by_blank_line(lines, "x"))
    assert [line for document in found for line in document.text.split("\n")] == [line for line in lines if line]
    assert len(found) == len([part for part in "|".join(lines or [""]).split("||") if part.strip("|")])


def test_a_heading_begins_a_document_and_names_it() -> None:
    lines = ["preface", " = One = ", "a", "", " = = Part = = ", "b", " = Two = ", "c"]
    pattern = r"^\s*= (?!=)(.+) =\s*$"
    assert pairs(documents_by_heading(lines, pattern, "x")) == [
        ("x#1", "preface"),
        ("One", " = One = \na\n = = Part = = \nb"),
        ("Two", " = Two = \nc"),
    ]
    assert pairs(documents_by_heading(["  CHAPTER I", "a"], "CHAPTER", "x")) == [("CHAPTER I", "  CHAPTER I\na")]


def test_a_faulty_heading_pattern_is_one_line() -> None:
    with pytest.raises(RequestError, match=r"^heading: '\(' is no regular expression"):
        list(documents_by_heading(["a"], "(", "x"))


def test_a_file_or_adjacent_rows_of_a_group_are_one_document() -> None:
    assert pairs(document_of_file(["a", "", "b"], "x")) == [("x", "a\nb")]
    assert list(document_of_file(["", " "], "x")) == []
    rows = [("g", "1"), ("g", "2"), ("h", "3"), ("g", "4")]
    assert pairs(documents_by_group(rows, "x")) == [("x#g", "1\n2"), ("x#h", "3"), ("x#g", "4")]
    assert next(documents_by_group(rows, "x")) == RawDocument("1\n2", "x#g", None)


def test_documents_come_back_as_written_over_many_shards(tmp_path: Path) -> None:
    documents = [Document(f"text {n} é😀 " * (n % 7 + 1), f"s{n % 2}", f"name {n}") for n in range(500)]
    with DocumentWriter(tmp_path, "train", shard_bytes=5000, group_bytes=1000) as writer:
        for document in documents:
            writer.add(document)
    assert len(writer.shards) > 5
    assert list(iter_documents(tmp_path, "train")) == documents
    for shard in writer.shards:
        file = pq.ParquetFile(shard)
        assert file.schema_arrow.names == ["text", "source", "name"]
        assert str(file.schema_arrow.field("text").type) == "large_string"
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        text = sum(len(t.encode()) for t in file.read(["text"]).column(0).to_pylist())
        assert text <= 5000


def test_one_document_above_the_shard_size_has_a_shard_of_its_own(tmp_path: Path) -> None:
    documents = [Document(letter * size, "s", "n") for letter, size in (("a", 10), ("b", 10_000), ("c", 10))]
    with DocumentWriter(tmp_path, "train", shard_bytes=1000, group_bytes=100) as writer:
        for document in documents:
            writer.add(document)
    assert len(writer.shards) == 3
    assert list(iter_documents(tmp_path, "train")) == documents


def test_file_names_that_are_no_unicode_can_be_stored(tmp_path: Path) -> None:
    with DocumentWriter(tmp_path, "train") as writer:
        writer.add(Document("t", "s", "a\udce9\n" + "b" * 999))
    (stored,) = iter_documents(tmp_path, "train")
    assert stored.name.startswith("a\ufffd bbb")
    assert len(stored.name) == 200


def test_missing_and_damaged_files_say_which_command_makes_them(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="run `bertpt download`"):
        list(iter_documents(tmp_path, "train"))
    (tmp_path / "train-00000.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(RequestError, match=r"train-00000.parquet: damaged"):
        list(iter_documents(tmp_path, "train"))

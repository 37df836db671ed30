from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertpt.config.schema import FilesSource
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.data.corpus.sources.local import fingerprint_inputs, read
from bertpt.data.corpus.sources.local_files import describe, human_size
from bertpt.errors import RequestError


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def reading(tmp_path: Path, said: list[str] | None = None, errors: str = "strict") -> Reading:
    return Reading(tmp_path / "downloads", errors, say=(said if said is not None else []).append)


def documents(tmp_path: Path, path: Path | str, said: list[str] | None = None, **options: Any) -> list[RawDocument]:
    return list(read(FilesSource(kind="files", path=str(path), **options), reading(tmp_path, said)))


def texts(tmp_path: Path, path: Path | str, **options: Any) -> list[str]:
    return [document.text for document in documents(tmp_path, path, **options)]


def faults(tmp_path: Path, path: Path | str, **options: Any) -> str:
    with pytest.raises(RequestError) as caught:
        documents(tmp_path, path, **options)
    assert all("\n" not in fault for fault in caught.value.faults)
    return str(caught.value)


# --- which files ----------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_full_in_the_order_of_names_without_side_files(tmp_path: Path) -> None:
    root = tmp_path / "c"
    for name in ("b.txt", "a/z.txt", "a.txt", "C.txt"):
        put(root / name, name)
    for name in ("README.md", "sub/LICENSE", "PROVENANCE.md", "splits.json", ".hidden/x.txt", ".DS_Store", "readme"):
        put(root / name, b"\x00\x01")
    expected = sorted(["b.txt", "a/z.txt", "a.txt", "C.txt"])
    found = documents(tmp_path, root)
    assert [document.text for document in found] == [document.name for document in found] == expected
    lines = describe(FilesSource(kind="files", path=str(root)))
    assert "4 files, 22 bytes" in lines[0]
    assert "left out 7" in lines[1]
    assert "PROVENANCE.md" in lines[1]


def test_what_will_be_read_is_listed_with_sizes_and_cut_at_five(tmp_path: Path) -> None:
    for number in range(8):
        put(tmp_path / "c" / f"{number}.txt", "x" * 1500)
    (line,) = describe(FilesSource(kind="files", path=str(tmp_path / "c")))
    assert "8 files, 12.0 kB: 0.txt (1.5 kB), " in line
    assert line.endswith("4.txt (1.5 kB) and 3 more")
    assert [human_size(size) for size in (0, 999, 12_345_678, 2.5e12)] == ["0 bytes", "999 bytes", "12.3 MB", "2.5 TB"]


def test_patterns_and_single_files(tmp_path: Path) -> None:
    put(tmp_path / "c/a.txt", "A")
    put(tmp_path / "c/d/b.txt", "B")
    put(tmp_path / "c/d/b.log", "no")
    put(tmp_path / "c/README.txt", "side")
    assert texts(tmp_path, f"{tmp_path}/c/**/*.txt") == ["A", "B"]
    assert documents(tmp_path, f"{tmp_path}/c/*/b.txt")[0].name == "d/b.txt#1"
    assert texts(tmp_path, tmp_path / "c/README.txt") == ["side"]
    odd = put(tmp_path / "c/odd[1].txt", "odd")
    assert texts(tmp_path, odd) == ["odd"]


def test_places_without_files_are_refused_by_name(tmp_path: Path) -> None:
    assert "no such file or folder" in faults(tmp_path, tmp_path / "gone")
    assert "no files to read here" in faults(tmp_path, f"{tmp_path}/*.txt")
    put(tmp_path / "c/README.md", "x")
    assert "left out: README.md" in faults(tmp_path, tmp_path / "c")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in faults(tmp_path, tmp_path / "pipe")


def test_a_link_in_a_circle_is_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "c/a.txt", "A")
    (tmp_path / "c/again").symlink_to(tmp_path / "c")
    put(tmp_path / "other/b.txt", "B")
    (tmp_path / "c/other").symlink_to(tmp_path / "other")
    assert texts(tmp_path, tmp_path / "c") == ["A", "B"]


def test_a_binary_file_in_a_wide_folder_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "c/a.txt", "A")
    put(tmp_path / "c/b.png", b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert "b.png: looks like a PNG image" in faults(tmp_path, tmp_path / "c")


def test_the_fingerprint_follows_names_and_content_not_the_place(tmp_path: Path) -> None:
    def of(place: Path) -> str:
        return fingerprint_inputs(FilesSource(kind="files", path=str(place)), reading(tmp_path))

    for root in ("one", "two/deeper"):
        put(tmp_path / root / "a.txt", "same")
        put(tmp_path / root / "README", root)
    first = of(tmp_path / "one")
    assert of(tmp_path / "two/deeper") == first
    put(tmp_path / "one/a.txt", "sane")
    assert of(tmp_path / "one") != first
    put(tmp_path / "one/a.txt", "same")
    assert of(tmp_path / "one") == first
    (tmp_path / "one/a.txt").rename(tmp_path / "one/b.txt")
    assert of(tmp_path / "one") != first


# --- where documents end --------------------------------------------------------------------------------------


def test_auto_takes_blank_lines_in_one_file_and_files_in_many(tmp_path: Path) -> None:
    put(tmp_path / "c/a.txt", "1\n2\n\u3000\n3\n")
    assert texts(tmp_path, tmp_path / "c") == ["1\n2", "3"]
    put(tmp_path / "c/b.txt", "4")
    said: list[str] = []
    assert [d.text for d in documents(tmp_path, tmp_path / "c", said)] == ["1\n2\n3", "4"]
    assert len(said) == 1
    assert "documents: blank-line" in said[0]
    assert texts(tmp_path, tmp_path / "c", documents="blank-line") == ["1\n2", "3", "4"]


def test_other_rules_for_text(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "CHAPTER 1\na\n\nb\nCHAPTER 2\nc\n")
    assert texts(tmp_path, path, documents="file") == ["CHAPTER 1\na\nb\nCHAPTER 2\nc"]
    assert texts(tmp_path, path, documents="heading", heading=r"CHAPTER \d") == ["CHAPTER 1\na\nb", "CHAPTER 2\nc"]
    assert texts(tmp_path, path, documents="row") == ["CHAPTER 1", "a", "b", "CHAPTER 2", "c"]
    assert "begins no line of 1 file" in faults(tmp_path, path, documents="heading", heading="PART")
    assert "needs columns" in faults(tmp_path, path, documents="group", group_column="g")


def test_empty_files_are_noted_and_counted(tmp_path: Path) -> None:
    put(tmp_path / "c/a.txt", "A")
    put(tmp_path / "c/e.txt", "")
    put(tmp_path / "c/f.txt", " \n\n")
    said: list[str] = []
    state = reading(tmp_path, said)
    assert len(list(read(FilesSource(kind="files", path=str(tmp_path / "c")), state))) == 1
    assert state.counts["empty_files"] == 2
    assert state.counts["files"] == 3
    assert said == [f"{tmp_path}/c: 2 files without text: e.txt, f.txt"]


def test_validation_files_are_held_out_and_not_read_twice(tmp_path: Path) -> None:
    put(tmp_path / "c/a.txt", "A")
    put(tmp_path / "c/val.txt", "V1\n\nV2")
    found = documents(tmp_path, tmp_path / "c", validation=str(tmp_path / "c/val.txt"))
    assert [(d.text, d.heldout) for d in found] == [("V1", True), ("V2", True), ("A", False)]
    assert documents(tmp_path, tmp_path / "c/a.txt")[0].heldout is None
    assert "all files are held out" in faults(tmp_path, tmp_path / "c/a.txt", validation=str(tmp_path / "c/a.txt"))


# --- rows -----------------------------------------------------------------------------------------------------


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_json_lines_rows_and_their_rules(tmp_path: Path) -> None:
    rows = [{"text": "a\r\nb", "g": 1}, {"text": "c\u2028d", "g": 1}, {"text": "", "g": 2}, {"text": "e", "g": 2}]
    path = put(tmp_path / "x.jsonl.gz", gzip.compress(("\ufeff" + jsonl(*rows[:2]) + "\n" + jsonl(*rows[2:])).encode()))
    assert [(d.name, d.text) for d in documents(tmp_path, path)] == [
        ("x.jsonl.gz#1", "a\nb"),
        ("x.jsonl.gz#2", "c\u2028d"),
        ("x.jsonl.gz#4", ""),
        ("x.jsonl.gz#5", "e"),
    ]
    assert texts(tmp_path, path, documents="group", group_column="g") == ["a\nb\nc\u2028d", "\ne"]
    assert texts(tmp_path, path, documents="blank-line") == ["a\nb\nc\u2028d", "e"]
    assert texts(tmp_path, path, documents="file") == ["a\nb\nc\u2028d\ne"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{'text': 1}", "no JSON"),
        ("plain\ttext", "no JSON"),
        ('{"text": "a"', "no JSON"),
        ("[1, 2]", "list found"),
        ('"text"', "str found"),
        ('{"title": "t", "body": "b"}', "no 'text'; found: title, body; set text_column"),
        ('{"text": 3}', "'text' is 3; a string is expected"),
        ('{"text": null}', "'text' is null"),
        ("[" * 100_000, "no readable JSON"),
        ('{"text": ' + "1" * 5000 + "}", "no readable JSON"),
    ],
)
def test_a_malformed_row_names_its_line_and_what_was_expected(tmp_path: Path, line: str, reason: str) -> None:
    path = put(tmp_path / "x.jsonl", '{"text": "fine"}\n\n' + line + "\n")
    message = faults(tmp_path, path)
    assert message.startswith(f"{path}: line 3: ")
    assert reason in message


def test_tables_by_their_ending_and_their_rules(tmp_path: Path) -> None:
    rows = '\ufeffid,text,g\r\n1,"a, ""b""\r\nc",x\r\n\r\n2,d\u2028e,x\r\n3,,y\r\n4,"f",y\r\n'
    path = put(tmp_path / "x.csv.gz", gzip.compress(rows.encode()))
    assert [(d.name, d.text) for d in documents(tmp_path, path)] == [
        ("x.csv.gz#2", 'a, "b"\nc'),
        ("x.csv.gz#5", "d\u2028e"),
        ("x.csv.gz#6", ""),
        ("x.csv.gz#7", "f"),
    ]
    assert texts(tmp_path, path, documents="group", group_column="g") == ['a, "b"\nc\nd\u2028e', "\nf"]
    tabs = put(tmp_path / "x.tsv", 'body\tn\nsaid "a, b"\t1\n"open\t2\n')
    assert texts(tmp_path, tabs, text_column="body") == ['said "a, b"', '"open']
    assert texts(tmp_path, tabs, format="text", documents="row") == ["body\tn", 'said "a, b"\t1', '"open\t2']


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        ("id,body\n1,a\n", 1, "no 'text'; found: id, body; set text_column"),
        ("id,text\n1,a\n\n2\n", 4, "1 cell, the first line has 2; mend it, or set format: text"),
        ("id,text\n1,a,b\n", 2, "3 cells, the first line has 2"),
        ('id,text\n1,"a\nb\n', 2, "no readable CSV (unexpected end of data)"),
        ('id,text\n1,"a"b\n', 2, "no readable CSV"),
    ],
)
def test_a_malformed_table_names_its_line_and_what_to_do(tmp_path: Path, rows: str, line: int, reason: str) -> None:
    path = put(tmp_path / "x.csv", rows)
    message = faults(tmp_path, path)
    assert message.startswith(f"{path}: line {line}: ")
    assert reason in message


def test_a_json_file_asks_what_it_is(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", '{"text": "a"}\n')
    assert "set format: jsonl" in faults(tmp_path, path)
    assert texts(tmp_path, path, format="jsonl") == ["a"]


def table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_rows_stream_over_row_groups(tmp_path: Path) -> None:
    many = [f"row {n}\r\nsecond" for n in range(5000)]
    path = table(tmp_path / "x.parquet", {"id": list(range(5000)), "body": many}, row_group_size=700)
    found = documents(tmp_path, path, text_column="body")
    assert [d.text for d in found] == [f"row {n}\nsecond" for n in range(5000)]
    assert found[-1].name == "x.parquet#5000"
    message = faults(tmp_path, path)
    assert "no column 'text'; set text_column to one of: id, body" in message
    assert "holds int64" in faults(tmp_path, path, text_column="id")
    half = put(tmp_path / "half.parquet", path.read_bytes()[:5000])
    assert "half.parquet: not readable as Parquet" in faults(tmp_path, half)


def test_parquet_groups_nulls_and_dictionaries(tmp_path: Path) -> None:
    columns = {"text": pa.array(["a", None, "b", "c"]).dictionary_encode(), "g": [1, 1, 1, 2]}
    path = table(tmp_path / "x.parquet", columns)
    assert texts(tmp_path, path) == ["a", "", "b", "c"]
    assert texts(tmp_path, path, documents="group", group_column="g") == ["a\n\nb", "c"]
    assert texts(
        tmp_path,
        table(tmp_path / "n.parquet", {"text": ["a", "b", "c"], "g": [None, None, "None"]}),
        documents="group",
        group_column="g",
    ) == ["a\nb", "c"]
    assert "set group_column to one of: text, g" in faults(tmp_path, path, documents="group", group_column="h")


def test_bytes_of_parquet_that_are_no_text_are_named_or_replaced(tmp_path: Path) -> None:
    cells = pa.array([b"fine", b"caf\xe9 au lait", None, "é".encode()], pa.binary())
    text = pa.StringArray.from_buffers(len(cells), cells.buffers()[1], cells.buffers()[2], cells.buffers()[0])
    path = table(tmp_path / "x.parquet", {"text": text})
    message = faults(tmp_path, path)
    assert "x.parquet: row 2: byte 4 of the text, 0xe9, is not valid UTF-8" in message
    assert "corpus.encoding_errors=replace" in message
    source = FilesSource(kind="files", path=str(path))
    replacing = reading(tmp_path, errors="replace")
    assert [document.text for document in read(source, replacing)] == ["fine", "caf\ufffd au lait", "", "é"]
    assert replacing.counts["replaced"] == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_a_device_in_the_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "c" / "a.txt", "a")
    os.mkfifo(tmp_path / "c" / "b")
    assert "c/b: not a regular file" in faults(tmp_path, tmp_path / "c")
    (tmp_path / "c" / "b").unlink()
    (tmp_path / "c" / "z").symlink_to("/dev/zero")
    assert "c/z: not a regular file" in faults(tmp_path, tmp_path / "c")


def test_a_home_of_nobody_is_one_line(tmp_path: Path) -> None:
    assert "~no-such-user-here/x" in faults(tmp_path, "~no-such-user-here/x")

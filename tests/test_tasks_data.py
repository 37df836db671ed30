"""Reading tables of examples: the traps of their files, labels, cutting; every fault has file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interop_helpers import TOKENS
from task_helpers import encoder, plain_task, task_config, write_tsv
from tokenizers import Tokenizer
from train_helpers import write_config

from bertpt.cli.main import run as command
from bertpt.config import load_finetune, shipped_configs, shipped_tasks, validate_finetune
from bertpt.config.finetune import FinetuneConfig
from bertpt.data.tokenizer.wordpiece import Normalising, WordPieceTokenizer, build
from bertpt.errors import RequestError
from bertpt.tasks.classification.labelled import read_examples
from bertpt.tasks.encode import encode_rows
from bertpt.tasks.examples import Splits, read_splits
from bertpt.tasks.kinds import TASKS


def config_of(path: Path, **data: Any) -> FinetuneConfig:
    sections = {key: data.pop(key) for key in ("regression", "task") if key in data}
    given = {"train": str(path), "dev": str(path), "test": None} | data
    return validate_finetune(plain_task(path.parent, data=given, **sections))


def texts(path: Path, **data: Any) -> list[tuple[tuple[str, ...], str]]:
    found = read_examples(str(path), config_of(path, **data))
    assert not found.faults
    return [(row.texts, row.label) for row in found.rows]


def faults(path: Path, **data: Any) -> list[str]:
    return read_examples(str(path), config_of(path, **data)).faults


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_table_without_header_with_quotes_and_columns_by_number(tmp_path: Path) -> None:
    path = put(tmp_path / "cola.tsv", 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\t"They" is\n')
    assert texts(path, header=False, text=-1, label=1) == [(('He said "no.',), "1"), (('"They" is',), "0")]


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = put(tmp_path / "mrpc.tsv", b"\xef\xbb\xbfQuality\t#1 String\t#2 String\r\n1\ta b\tc\r\n0\td\te\r\n")
    found = texts(path, label="Quality", text="#1 String", pair="#2 String")
    assert found == [(("a b", "c"), "1"), (("d", "e"), "0")]


def test_only_line_ends_end_a_row(tmp_path: Path) -> None:
    path = put(tmp_path / "x.tsv", "text\tlabel\na\u2028b\x0bc\x85d\tyes\n")
    assert texts(path) == [(("a\u2028b\x0bc\x85d",), "yes")]


def test_quoted_cells_of_csv_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", 'label,text\nyes,"a, ""b""\nc"\nno,d\n')
    assert texts(path) == [(('a, "b"\nc',), "yes"), (("d",), "no")]
    found = read_examples(str(path), config_of(path))
    assert [row.place for row in found.rows] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize("cell", ["null", "NULL", "NaN", "nan", "None", "NA", "1", "1.0", "true", "", "007"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_cells_are_text_whatever_they_read(tmp_path: Path, cell: str, name: str) -> None:
    mark = "," if name == "x.csv" else "\t"
    path = put(tmp_path / name, f"text{mark}label\n{cell}{mark}yes\nb{mark}no\n")
    assert texts(path)[0] == ((cell,), "yes")
    assert read_examples(str(path), config_of(path)).counts["empty"] == (not cell)


def test_json_lines_and_parquet_hold_text_and_numbers(tmp_path: Path) -> None:
    rows = [{"text": "null", "label": 1}, {"text": "", "label": 0}]
    path = put(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n\n" for row in rows))
    assert texts(path) == [(("null",), "1"), (("",), "0")]
    pq.write_table(pa.table({"text": ["null", ""], "label": [1, 0]}), tmp_path / "x.parquet")
    assert texts(tmp_path / "x.parquet") == [(("null",), "1"), (("",), "0")]
    assert texts(tmp_path / "x.parquet", text=0, label=-1) == [(("null",), "1"), (("",), "0")]


def test_fasttext_lines_and_a_label_map_of_five_to_three(tmp_path: Path) -> None:
    lines = ["__label__1\ta b", "__label__3 c", "__label__5\td\te", "__label__9 gone"]
    path = put(tmp_path / "x.txt", "\n".join(lines) + "\n")
    maps = {1: "negative", 2: "negative", 3: "neutral", 4: "positive", 5: "positive", 9: None}
    found = read_examples(str(path), config_of(path, task="sentiment", format="fasttext", label_map=maps))
    assert [(row.texts[0], row.label) for row in found.rows] == [
        ("a b", "negative"),
        ("c", "neutral"),
        ("d\te", "positive"),
    ]
    assert found.counts["left_out"] == 1


@pytest.mark.parametrize(
    ("name", "content", "data", "fault"),
    [
        ("x.tsv", "text\tlabel\na\tyes\nb\n", {}, ":3: 1 columns, the first line has 2"),
        ("x.tsv", 'text\tlabel\n"a\tb"\tyes\n', {}, ":2: 3 columns, the first line has 2; where quotes enclose"),
        ("x.csv", 'text,label\na,yes\n"b,no\n', {}, ":3: unexpected end of data; where a quote is text"),
        ("x.csv", "text,label\na,b,yes\n", {}, ":2: 3 columns, the first line has 2; where a quote is text"),
        ("x.tsv", "text\tlabel\na\t \n", {}, ":2: no label"),
        ("x.tsv", "text\tlabel\na\tyes\n", {"label_map": {"y": "b"}}, ":2: label 'yes' is not in data.label_map: y"),
        ("x.tsv", "text\tlabel\na\tyes\n", {"labels": ["y"]}, ":2: label 'yes' is not in data.labels: y"),
        ("x.tsv", "text\tlabel\na\tyes\n", {"regression": True}, ":2: score 'yes' is not a number"),
        ("x.tsv", "text\tlabel\na\tnan\n", {"regression": True}, ":2: score 'nan' is not finite"),
        ("x.tsv", "text\tlabel\na\tyes\n", {"task": "sentiment"}, ":2: label 'yes' is no sentiment"),
        ("x.jsonl", '{"text": "a", "label": "b"}\n{"text": \n', {}, ":2: not JSON"),
        ("x.jsonl", '{"text": null, "label": "b"}\n', {}, ":1: text: text or a number is expected, not None"),
        ("x.jsonl", '{"txt": "a", "label": "b"}\n', {}, ":1: no 'text'; there: txt, label"),
        ("x.jsonl", "[1]\n", {}, ":1: a JSON object is expected, not list"),
        ("x.txt", "no label\n", {"format": "fasttext"}, ":1: __label__NAME is expected"),
        ("x.txt", "__label__a __label__b c\n", {"format": "fasttext"}, ":1: two labels"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(
    tmp_path: Path, name: str, content: str, data: dict[str, Any], fault: str
) -> None:
    path = put(tmp_path / name, content)
    found = faults(path, **data)
    assert len(found) == 1
    assert found[0].startswith(f"{path}{fault}")


@pytest.mark.parametrize(
    ("name", "content", "data", "fault"),
    [
        ("x.tsv", "a\tb\n", {}, "no column 'label'; its first line has: a, b"),
        ("x.tsv", "text\tlabel\n", {"label": 2}, "no column 2; the first line has 2"),
        ("x.txt", "a\n", {}, "its ending tells no format"),
        (
            "x.tsv",
            b"text\tlabel\ncaf\xe9\tyes\n",
            {},
            "line 2, byte 14: 0xe9 is not valid UTF-8 (invalid continuation byte); convert the file, e.g. iconv",
        ),
        ("x.parquet", "no", {}, "not readable as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, content: str | bytes, data: dict[str, Any], fault: str
) -> None:
    path = put(tmp_path / name, content)
    with pytest.raises(RequestError) as caught:
        faults(path, **data)
    assert fault in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"gone\.tsv: no such file"):
        faults(tmp_path / "gone.tsv")


def splits_of(config: FinetuneConfig) -> Splits:
    return read_splits(TASKS[config.task], config)


def test_all_faults_of_all_files_come_together_and_many_are_counted(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a", "no"), ("b", "yes")] + [("c",)] * 12)
    write_tsv(tmp_path / "dev.tsv", [("a", "no"), ("d",)])
    with pytest.raises(RequestError) as caught:
        splits_of(task_config(tmp_path, data={"test": None}))
    assert len(caught.value.faults) == 11
    assert caught.value.faults[-1] == "3 more like these"


def test_labels_are_text_in_sorted_order_whole_numbers_by_value(tmp_path: Path) -> None:
    for labels, expected in (
        ([str(n) for n in range(20, 0, -1)], [str(n) for n in range(1, 21)]),
        (["b", "a", "c"], ["a", "b", "c"]),
    ):
        for split in ("train", "dev"):
            write_tsv(tmp_path / f"{split}.tsv", [("x", label) for label in labels])
        assert splits_of(task_config(tmp_path, data={"test": None})).facts["labels"] == expected
    given_order = ["c", "a", "b"]
    assert splits_of(task_config(tmp_path, data={"test": None, "labels": given_order})).facts["labels"] == given_order


def test_a_label_that_train_lacks_is_refused_by_file_and_line(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a", "no"), ("b", "yes")])
    write_tsv(tmp_path / "dev.tsv", [("a", "no"), ("b", "maybe")])
    with pytest.raises(RequestError, match=r"dev\.tsv:3: label 'maybe' does not stand in train: no, yes"):
        splits_of(task_config(tmp_path, data={"test": None}))
    write_tsv(tmp_path / "train.tsv", [("a", "no"), ("b", "no")])
    with pytest.raises(RequestError, match="1 label"):
        splits_of(task_config(tmp_path, data={"test": None}))


# --- encoding -------------------------------------------------------------------------------------------------

PIECES = st.text("abcdefgh ", max_size=40)


@given(st.lists(st.tuples(PIECES, PIECES), min_size=1, max_size=6), st.integers(4, 40), st.booleans())
def test_rows_and_cuts_are_those_of_the_tokenizers_library(
    rows: list[tuple[str, str]], length: int, pairs: bool
) -> None:
    theirs: Tokenizer = build(TOKENS, Normalising())
    theirs.enable_truncation(length, strategy="longest_first")
    ours = WordPieceTokenizer(build(TOKENS, Normalising()))
    given_rows: list[tuple[str, ...]] = list(rows) if pairs else [row[:1] for row in rows]
    encoded, full = encode_rows(ours, given_rows, length)
    for number, row in enumerate(given_rows):
        span = slice(encoded.offsets[number], encoded.offsets[number + 1])
        expected = theirs.encode(*row)
        assert encoded.ids[span].tolist() == expected.ids
        assert encoded.types[span].tolist() == expected.type_ids
    assert (full > encoded.lengths).sum() == sum(bool(theirs.encode(*row).overflowing) for row in given_rows)


def test_a_batch_holds_the_rows_that_were_asked_for() -> None:
    ours = WordPieceTokenizer(build(TOKENS, Normalising()))
    rows, _ = encode_rows(ours, [("a",), ("b c d",), ("",)], 16)
    import numpy as np

    batch = rows.batch(np.array([2, 1]))
    assert batch.input_ids.tolist() == [
        ours.cls_id,
        ours.sep_id,
        ours.cls_id,
        *[TOKENS.index(letter) for letter in "bcd"],
        ours.sep_id,
    ]
    assert batch.first.tolist() == [0, 2]


def test_text_never_becomes_a_special_token() -> None:
    ours = WordPieceTokenizer(build(TOKENS, Normalising()))
    rows, _ = encode_rows(ours, [("a [SEP] b",)], 32)
    assert rows.ids.tolist().count(ours.sep_id) == 1


# --- configuration --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"from": "random"}, "like: is required with from=random"),
        ({"like": "x"}, "like: is of from=random alone"),
        ({"regression": True, "train": {"metric": "f1"}}, "train.metric: f1 does not fit regression=true"),
        ({"train": {"metric": "pearson"}}, "train.metric: pearson does not fit regression=false"),
        ({"train": {"metric": "acuracy"}}, "did you mean accuracy"),
        ({"head": {"width": 3}}, "head.width: 3: a linear head has none"),
        ({"data": {"labels": ["a", "a"]}}, "data.labels: a label stands twice"),
        ({"data": {"format": "tsv", "header": False}}, "data.text: text: without a header"),
        ({"data": {"format": "jsonl", "text": 0}}, "data.text: 0: JSON lines have names"),
        ({"task": "sentiment", "data": {"label_map": {"1": "good"}}}, "data.label_map: 'good' is no sentiment"),
        ({"task": "sentiment", "regression": True}, "regression: sentiment has three classes"),
        ({"train": {"class_weights": "balanced", "label_weights": {"a": 2}}}, "both are set"),
        ({"task": "nerr"}, "task: 'nerr' is not one of"),
        ({"train": {"lr": True}}, "train.lr"),
        ({"data": {"txt": "a"}}, "data.txt: unknown key; did you mean text?"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate_finetune(plain_task(tmp_path, **changes))
    assert fault in "\n".join(caught.value.faults)


def test_all_faults_of_a_configuration_come_together(tmp_path: Path) -> None:
    value = plain_task(tmp_path, train={"epoch": 3, "lr": "fast"}, data={"labl": "x"})
    with pytest.raises(RequestError) as caught:
        load_finetune(write_config(tmp_path / "c.yaml", value))
    assert sorted(line.split(":")[1].strip() for line in caught.value.faults) == [
        "data.labl",
        "train.epoch",
        "train.lr",
    ]


@pytest.mark.parametrize("name", shipped_tasks())
def test_shipped_task_configurations_are_valid_documented_and_no_pre_training_ones(name: str) -> None:
    config = load_finetune(name)
    assert f"tasks/{config.name}" == name
    assert "Data: " in config.description
    assert name not in shipped_configs()


def test_max_length_above_the_positions_and_an_f1_of_three_labels_are_refused(tmp_path: Path) -> None:
    from task_helpers import fit, labelled

    with pytest.raises(RequestError, match=r"train\.max_length: 100 is above the 48 positions"):
        fit(task_config(tmp_path, train={"max_length": 100}))
    for split in ("train", "dev"):
        write_tsv(tmp_path / f"{split}.tsv", labelled(9, ["a", "b", "c"]))
    with pytest.raises(RequestError, match="set f1_macro"):
        fit(task_config(tmp_path, data={"test": None}, train={"metric": "f1"}))
    with pytest.raises(RequestError, match=r"train\.label_weights: no such label: z"):
        fit(task_config(tmp_path, data={"test": None}, train={"label_weights": {"z": 2}}))
    assert not (tmp_path / "runs").exists()


# --- inspect --------------------------------------------------------------------------------------------------


@pytest.fixture
def inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    encoder(tmp_path)

    def inspect(*arguments: str, **sections: Any) -> tuple[int, str, str]:
        path = write_config(tmp_path / "c.yaml", plain_task(tmp_path, **sections))
        code = command(["inspect", "task", "--config", str(path), *arguments])
        return code, *capsys.readouterr()

    return inspect


def test_inspect_counts_labels_lengths_repeats_and_rows_of_dev_in_train(
    tmp_path: Path, inspected: Callable[..., tuple[int, str, str]]
) -> None:
    write_tsv(tmp_path / "train.tsv", [("a b", "no"), ("a  b", "yes"), ("c " * 60, "yes"), ("", "yes")])
    write_tsv(tmp_path / "dev.tsv", [("a b", "no"), ("d", "yes")])
    code, out, _ = inspected("--json", data={"test": None})
    assert code == 0
    report = json.loads(out)["splits"]
    assert report["train"]["labels"] == {"no": 1, "yes": 3}
    assert report["train"]["lengths"]["largest"] == 62
    assert (report["train"]["cut"], report["train"]["repeats"], report["train"]["contradictions"]) == (1, 1, 1)
    assert report["train"]["counts"] == {"empty": 1}
    assert report["dev"]["in_train"] == 1
    assert report["dev"]["in_train_first"] == [f"{tmp_path}/dev.tsv:2 = {tmp_path}/train.tsv:2"]
    code, out, _ = inspected(data={"test": None})
    assert "also in train: 1 (50.0%)" in out
    assert "1 above train.max_length 32" in out


def test_inspect_lists_malformed_rows_and_ends_with_code_2(
    tmp_path: Path, inspected: Callable[..., tuple[int, str, str]]
) -> None:
    write_tsv(tmp_path / "train.tsv", [("a", "no"), ("b", "yes"), ("c",)])
    write_tsv(tmp_path / "dev.tsv", [("a", "maybe")])
    code, out, err = inspected("-q", data={"test": None})
    assert code == 2
    assert f"{tmp_path}/train.tsv:4: 1 columns" in err
    assert f"{tmp_path}/dev.tsv:2: label 'maybe' does not stand in train" in err
    assert "train: " in out

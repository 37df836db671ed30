"""What happens to a task's run and files between commands: moved, replaced, damaged; and values no format foresees."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError
from task_helpers import encoder, fit, labelled, plain_task, silent, task_config, write_tsv
from train_helpers import write_config

from bertpt.cli.main import main
from bertpt.cli.main import run as command
from bertpt.config import validate_finetune
from bertpt.config.finetune.tagging import TaggedData
from bertpt.errors import RequestError
from bertpt.runs import list_runs
from bertpt.tasks.evaluation import evaluate_task_run
from bertpt.tasks.qa.questions import locate, read_questions
from bertpt.tasks.records import NotJson, parse_json
from bertpt.tasks.tagging.tagged import read_sentences
from bertpt.tasks.tagging.words import Window, windows
from bertpt.train.checkpoints.saving import write_tensors
from bertpt.train.reports.logs import read_metrics

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accidents")
    fit(task_config(folder))
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A folder of its own with a finished run ``t``; its files lie where they were."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    for split in ("train", "dev", "test"):
        shutil.copy(finished / f"{split}.tsv", tmp_path)
    shutil.copytree(finished / "encoder-BertForPreTraining", tmp_path / "encoder-BertForPreTraining")
    return tmp_path


# --- files that move ------------------------------------------------------------------------------------------------


def test_another_test_file_is_the_one_that_is_scored(folder: Path) -> None:
    other = write_tsv(folder / "other.tsv", labelled(10, ["no", "yes"], 5))
    found = fit(task_config(folder, data={"test": str(other)}))
    assert found.splits["test"].rows == 10
    assert evaluate_task_run(folder / "runs/t", say=silent).splits["test"].rows == 10
    assert set(fit(task_config(folder, data={"test": None})).splits) == {"dev"}


def test_files_that_were_moved_are_found_where_the_command_says(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").rename(folder / "elsewhere" / f"{split}.tsv")
    moved = {split: str(folder / "elsewhere" / f"{split}.tsv") for split in ("train", "dev", "test")}
    entries = read_metrics(folder / "runs/t/metrics.jsonl")
    again = fit(task_config(folder, data=moved))
    assert again.splits["dev"].rows == 24
    assert read_metrics(folder / "runs/t/metrics.jsonl") == entries  # nothing was trained
    assert evaluate_task_run(folder / "runs/t", say=silent).splits.keys() == {"dev", "test"}


# --- runs that are damaged ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"- a\n", b"\xff\xfe", b"task: [", b"task: classification\n"], ids=repr)
@pytest.mark.parametrize("name", ["task.yaml", "task.json"])
def test_a_damaged_run_is_named_and_the_table_of_runs_has_the_others(folder: Path, name: str, content: bytes) -> None:
    shutil.copytree(folder / "runs/t", folder / "runs/broken")
    (folder / "runs/broken" / name).write_bytes(content)
    with pytest.raises(RequestError) as caught:
        evaluate_task_run(folder / "runs/broken", say=silent)
    assert all(f"runs/broken/{name}" in fault for fault in caught.value.faults)
    rows = {row.name: row for row in list_runs(folder / "runs").rows}
    assert rows["t"].state == "finished"
    assert name in str(rows["broken"].fault)


def test_another_tokenizer_in_a_run_is_noticed(folder: Path) -> None:
    path = folder / "runs/t/tokenizer/tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"a"', '"q"', 1), encoding="utf-8")
    with pytest.raises(RequestError, match=r"tokenizer.json: damaged: it is not the one of training"):
        evaluate_task_run(folder / "runs/t", say=silent)
    path.unlink()
    with pytest.raises(RequestError, match=r"tokenizer.json: is gone"):
        evaluate_task_run(folder / "runs/t", say=silent)


def test_lost_weights_of_the_best_epoch_are_no_dead_end(folder: Path) -> None:
    weights = folder / "runs/t/best/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RequestError, match=r"with --overwrite trains it again"):
        evaluate_task_run(folder / "runs/t", say=silent)
    shutil.rmtree(folder / "runs/t/best")
    with pytest.raises(RequestError, match=r"best epoch are gone; `bertpt finetune` with --overwrite"):
        fit(task_config(folder))


# --- values no format foresees --------------------------------------------------------------------------------------


def test_half_of_a_surrogate_pair_is_a_replacement_character(finished: Path, tmp_path: Path) -> None:
    assert parse_json(r'{"\ud83d": ["b \udc00", {"c": "\ud83d\ude00"}]}') == {
        "\ufffd": ["b \ufffd", {"c": "\U0001f600"}]
    }
    rows = [f'{{"text": "a \\ud83d {n}", "label": "{"no" if n % 2 else "yes"}"}}\n' for n in range(12)]
    (tmp_path / "t.jsonl").write_text("".join(rows), encoding="utf-8")
    encoder(tmp_path)
    data = dict.fromkeys(("train", "dev", "test"), str(tmp_path / "t.jsonl"))
    fit(task_config(tmp_path, data=data, train={"epochs": 1}))
    line = (tmp_path / "runs/t/predictions-dev.jsonl").read_text("utf-8").splitlines()[0]
    assert json.loads(line)["text"].startswith("a \ufffd")


@pytest.mark.parametrize(
    ("text", "fault"),
    [("[" * 200_000, "nested too deeply"), ("[" + "9" * 5000 + "]", "too many digits"), ("{", "Expecting property")],
    ids=["deep", "long", "open"],
)
def test_json_that_python_cannot_hold_is_a_fault_of_its_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(NotJson, match=fault):
        parse_json(text)
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"tokens": ["a"], "tags": ["O"]}}\n{text}\n', encoding="utf-8")
    found = read_sentences(path, TaggedData(train=str(path), dev=str(path)), entities=True)
    assert len(found.rows) == 1
    assert [f"{path}:2: not JSON" in line and fault in line for line in found.faults] == [True]
    questions = read_questions(path)
    assert any(fault in line for line in questions.faults)
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=fault):
        read_questions(path.with_suffix(".json"))


def test_a_huge_answer_start_is_none_of_the_context() -> None:
    span, kind, note = locate("it was ada", "ada", 10**30)
    assert (span, kind) == (None, "elsewhere")
    assert f"at {10**30}" in note


def test_parquet_values_that_are_no_values_name_file_and_row(tmp_path: Path) -> None:
    stamps = pa.array([0, 2**55], pa.timestamp("ms"))
    pq.write_table(pa.table({"question": ["q", "r"], "context": ["c", "d"], "when": stamps}), tmp_path / "q.parquet")
    assert len(read_questions(tmp_path / "q.parquet", answered=False).rows) == 2  # the column is not asked for
    pq.write_table(pa.table({"tokens": stamps, "tags": ["O", "O"]}), tmp_path / "t.parquet")
    data = TaggedData(train="x", dev="x")
    with pytest.raises(RequestError, match=r"t.parquet: after row 0: a value cannot be read"):
        read_sentences(tmp_path / "t.parquet", data, entities=True)


@pytest.mark.parametrize(("tag", "fault"), [("pos", "CoNLL-U has no column 'pos'"), ("form", "one column is read")])
def test_a_column_that_conllu_lacks_is_refused_where_the_ending_tells_the_format(
    tmp_path: Path, tag: str, fault: str
) -> None:
    path = tmp_path / "x.conllu"
    path.write_text("1\ta\ta\tDET\t_\t_\t0\troot\t_\t_\n", encoding="utf-8")
    with pytest.raises(RequestError, match=fault):
        read_sentences(path, TaggedData(train="x", dev="x", tag=tag), entities=False)
    path.write_text("9" * 5000 + "\ta\ta\tDET\t_\t_\t0\troot\t_\t_\n", encoding="utf-8")
    found = read_sentences(path, TaggedData(train="x", dev="x"), entities=False)
    assert "is no number of a word" in found.faults[0]


def test_a_sentence_of_a_million_words_needs_memory_in_proportion() -> None:
    found = windows([1] * 1_000_000, 30)  # spans x words would be 500 GB
    assert found[0] == Window(0, 30, 0, found[0].own_end)
    assert [one.own_end for one in found[:-1]] == [other.own_begin for other in found[1:]]
    assert found[-1].own_end == 1_000_000


@pytest.mark.parametrize(
    ("rows", "sections", "fault"),
    [
        ([("a", "1"), ("b", "1e39")], {"regression": True}, r"dev.tsv:3: score '1e39' is too large"),
        ([("a", "1", "x"), ("b", "2", "y")], {}, r"2 columns are called 'text'"),
    ],
)
def test_columns_and_scores_that_cannot_be_meant(
    tmp_path: Path, rows: list[tuple[str, ...]], sections: dict[str, object], fault: str
) -> None:
    header = ("text", "label", "text")[: len(rows[0])]
    for split in ("train", "dev", "test"):
        write_tsv(tmp_path / f"{split}.tsv", rows, header)
    with pytest.raises(RequestError, match=fault) as caught:
        fit(task_config(tmp_path, **sections))
    assert len(set(caught.value.faults)) == len(caught.value.faults)


def test_one_file_for_two_splits_has_its_faults_once(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "x.tsv", [("a", "no"), ("b",), ("c", "yes")])
    with pytest.raises(RequestError) as caught:
        fit(task_config(tmp_path, data=dict.fromkeys(("train", "dev", "test"), str(path))))
    assert len(caught.value.faults) == 1


def test_more_labels_than_a_matrix_is_good_for(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    rows = [(f"w{n}", f"l{n}") for n in range(300)]
    for split, some in (("train", rows), ("dev", rows[:1]), ("test", rows[:2])):
        write_tsv(tmp_path / f"{split}.tsv", some)
    found = fit(task_config(tmp_path, train={"epochs": 1}))
    assert "confusion" not in found.splits["test"].details
    assert len(found.table()) < 2000
    assert not recwarn.list


def test_a_fine_tuned_model_of_others_is_told_apart(tmp_path: Path) -> None:
    place = encoder(tmp_path, "BertForSequenceClassification")
    with pytest.raises(
        RequestError, match=r"unexpected: classifier.* \(the head of a fine-tuned model; name the pre-tr"
    ):
        fit(task_config(tmp_path, **{"from": str(place)}))


def test_entities_in_every_word_are_entities(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("a B-X\nb B-X\n\n" * 4, encoding="utf-8")
    encoder(tmp_path)
    plain = {**plain_task(tmp_path), "task": "ner", "data": {"train": str(path), "dev": str(path)}}
    found = fit(validate_finetune(plain | {"train": {"epochs": 1, "max_length": 16, "device": "cpu"}}))
    assert found.facts["labels"] == ["B-X", "I-X", "O"]


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "1,99999999999999999999"], "--seeds: 1,99999999999999999999: different numbers"),
        (
            ["--set", "train.epochs=2000000000", "--set", "train.batch_size=1"],
            "are 96,000,000,000 updates",
        ),
        (["--set", "data.text=label"], "one column is read twice"),
        (["--set", "data.text=[1]"], "data.text=[1]: data.text: input should be a valid string"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    tmp_path: Path, arguments: list[str], said: str, capsys: Capture
) -> None:
    encoder(tmp_path)
    write_config(tmp_path / "t.yaml", plain_task(tmp_path))
    assert command(["finetune", "classification", "--config", str(tmp_path / "t.yaml"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_is_full_for_what_is_printed(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bertpt.cli.predict.typer.echo", full)
    monkeypatch.setattr("bertpt.cli.main._silence_stdout", lambda: None)
    assert command(["predict", "classification", "a b", "--model", str(finished / "runs/t"), "-q"]) == 1
    assert "bertpt: what is printed cannot be written: No space left on device" in capsys.readouterr().err


def test_a_full_disk_under_tensors_is_told_as_of_any_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("bertpt.train.checkpoints.saving.save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_tensors({"a": torch.zeros(1)}, tmp_path / "a.safetensors")


def test_closed_streams_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr("bertpt.cli.main.signals.ignore", lambda: None)
    with pytest.raises(SystemExit) as left:
        main(["config", "list"])
    assert left.value.code == 0
    for name in ("stdin", "stdout", "stderr"):
        getattr(sys, name).close()

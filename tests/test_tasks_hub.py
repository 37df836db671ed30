"""Splits of a hub data set in place of files; a local folder stands for the hub, read by ``datasets`` itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from task_helpers import fit, labelled, plain_task, silent, task_config
from train_helpers import write_config

from bertpt.cli.main import run as command
from bertpt.config import validate_finetune
from bertpt.config.schema import HubSource
from bertpt.data.corpus.hub_splits import fetch_split
from bertpt.errors import RequestError
from bertpt.tasks.evaluation import evaluate_task_run
from bertpt.tasks.examples import read_splits
from bertpt.tasks.hub import with_files
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.rundir import open_task_run

LABELS = ["no", "yes"]


def data_set(folder: Path, **splits: int) -> Path:
    """A data set of two columns, written by ``datasets``, whose labels are numbers with names."""
    features = datasets.Features({"sentence": datasets.Value("string"), "kind": datasets.ClassLabel(names=LABELS)})
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate(splits.items()):
        rows = labelled(count, LABELS, seed)
        columns = {"sentence": [text for text, _ in rows], "kind": [LABELS.index(label) for _, label in rows]}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(str(folder / f"{split}-00000.parquet"))
    return folder


def hub_task(folder: Path, **data: object) -> dict[str, object]:
    """Plain data of a configuration that reads :func:`data_set` by its splits."""
    value = plain_task(folder, train={"epochs": 1})
    hub = {"dataset": str(folder / "set"), "keep": str(folder / "keep")}
    value["data"] = {"hub": hub, "train": "train", "dev": "validation", "text": "sentence", "label": "kind"} | data
    return value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task_config(tmp_path)  # makes the encoder
    data_set(tmp_path / "set", train=40, validation=20, test=10)
    return tmp_path


def test_class_labels_become_names_and_the_rows_are_those_of_the_data_set(folder: Path) -> None:
    config = with_files(validate_finetune(hub_task(folder, test="test")), silent)
    splits = read_splits(TASKS["classification"], config)
    assert splits.facts["labels"] == LABELS
    for seed, (split, count) in enumerate({"train": 40, "dev": 20, "test": 10}.items()):
        found = [(example.texts[0], example.label) for example in splits.examples[split]]
        assert found == labelled(count, LABELS, seed)


def test_a_run_of_splits_keeps_files_and_is_evaluated_and_resumed_without_the_data_set(folder: Path) -> None:
    lines: list[str] = []
    value = hub_task(folder)
    done = fit(validate_finetune(value), lines=lines)
    assert any("40 rows in" in line for line in lines)
    assert open_task_run(folder / "runs/t").config.data.hub is None
    lines.clear()
    fit(validate_finetune(value), lines=lines)  # the same command
    assert any("nothing to train" in line for line in lines)
    assert not any("rows in" in line for line in lines)
    shutil.rmtree(folder / "set")
    assert evaluate_task_run(folder / "runs/t", say=silent).as_dict() == done.as_dict()


def test_slices_of_a_split_are_splits(folder: Path) -> None:
    value = hub_task(folder, train="train[:30]", dev="train[30:]")
    splits = read_splits(TASKS["classification"], with_files(validate_finetune(value), silent))
    assert [len(splits.examples[split]) for split in ("train", "dev")] == [30, 10]
    texts = [example.texts[0] for split in ("train", "dev") for example in splits.examples[split]]
    assert texts == [text for text, _ in labelled(40, LABELS, 0)]


def test_unknown_splits_columns_and_data_sets_say_what_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(**data: object) -> str:
        path = write_config(folder / "c.yaml", hub_task(folder, **data))
        assert command(["finetune", "classification", "-c", str(path), "-q"]) == 2
        assert not (folder / "runs").exists()
        return capsys.readouterr().err

    said = fault(train="trian", dev="valid")
    assert all(name in said for name in ("data.train:", "trian", "data.dev:", "valid", "train", "validation", "test"))
    assert "no column 'text'; there are: sentence, kind" in fault(text="text")
    assert "no such folder" in fault(hub={"dataset": "./absent"})
    assert "data.format: csv: splits of data.hub are kept as Parquet" in fault(format="csv")


def test_inspect_reads_splits_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(folder / "c.yaml", hub_task(folder))
    assert command(["inspect", "task", "-c", str(path), "--json", "-q"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert splits["train"]["labels"] == {"no": 20, "yes": 20}
    assert splits["dev"]["rows"] == 20


def test_a_changed_folder_is_read_again_and_a_damaged_file_is_named(folder: Path) -> None:
    def fetched(split: str = "train") -> Path:
        source = HubSource(kind="hub", dataset=str(folder / "set"), split=split)
        return fetch_split(source, folder / "keep", silent)

    first = fetched()
    assert fetched() == first
    data_set(folder / "set", train=44)
    second = fetched()
    assert second != first
    assert pq.read_metadata(second).num_rows == 44
    with second.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(RequestError, match=r"rows\.parquet: damaged"):
        fetched()


def test_hidden_labels_are_null_and_lists_of_labels_lists_of_names(tmp_path: Path) -> None:
    tags = datasets.List(datasets.ClassLabel(names=["O", "B-X"]))
    features = datasets.Features({"kind": datasets.ClassLabel(names=LABELS), "tags": tags, "n": datasets.Value("int8")})
    columns = {"kind": [1, -1, 0], "tags": [[1, 0], [], [0, 0, 1]], "n": [5, -1, 7]}
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "set/train.parquet"))
    path = fetch_split(HubSource(kind="hub", dataset=str(tmp_path / "set")), tmp_path / "keep", silent)
    found: pa.Table = pq.read_table(path)
    assert found.to_pydict() == {
        "kind": ["yes", None, "no"],
        "tags": [["B-X", "O"], [], ["O", "O", "B-X"]],
        "n": [5, -1, 7],
    }

"""Changed bytes and full disks: a stage names the file, and never works on with what is damaged."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from stage_helpers import wordy_documents
from train_helpers import Tiny, quiet

from bertpt.data.locate import documents_dir, finished_store, tokenizer_dir
from bertpt.data.tokens.prepare import prepare
from bertpt.errors import BertptError, RequestError
from bertpt.train.checkpoints import saving
from bertpt.train.checkpoints.saving import save_checkpoint
from bertpt.train.pretrain import pretrain
from bertpt.train.rundir import open_run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text").mkdir()
    for number, text in enumerate(wordy_documents(40)):
        (folder / "text" / f"{number}.txt").write_text(text, encoding="utf-8")
    made = Tiny(folder)
    made.prepare()
    return made


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Tiny:
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return Tiny(tmp_path / "copy")


@pytest.mark.parametrize("name", ["train.ids.bin", "train.lengths.bin", "heldout.ids.bin", "unigram.bin"])
def test_training_does_not_begin_on_a_damaged_store(copy: Tiny, name: str) -> None:
    config = copy.config(copy.folder / "runs")
    change_a_byte(finished_store(config) / name)
    with pytest.raises(RequestError, match=f"{name}: damaged"):
        pretrain(config, say=quiet)
    assert not (copy.folder / "runs").exists()


@pytest.mark.parametrize("what", ["documents", "tokenizer"])
def test_a_store_is_not_made_of_damaged_files(copy: Tiny, what: str) -> None:
    config = copy.config(copy.folder / "runs")
    store = finished_store(config)
    change_a_byte(
        documents_dir(config) / "train-00000.parquet" if what == "documents" else tokenizer_dir(config) / "vocab.txt"
    )
    before = (store / "train.ids.bin").read_bytes()
    with pytest.raises(RequestError, match="damaged"):
        prepare(config, overwrite=True, say=quiet, progress=False)
    assert (store / "train.ids.bin").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b"- a\n  b: ["])
def test_a_damaged_configuration_of_a_run_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(RequestError, match=r"config\.yaml") as caught:
        open_run(tmp_path)
    assert len(caught.value.faults) == 1


def test_a_disk_that_fills_while_weights_are_saved_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})")

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    save_checkpoint(tmp_path, 1, model, optimizer, {}, keep=2)
    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(BertptError, match=r"step-00000002: cannot write: No space left on device \("):
        save_checkpoint(tmp_path, 2, model, optimizer, {}, keep=2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]

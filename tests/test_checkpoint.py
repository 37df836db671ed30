"""Checkpoints: exact, verified before use, rotated by number, never a half one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from model_helpers import labels, packed, padded_rows, small
from safetensors.torch import save_file
from torch.optim import Optimizer

import bertpt
from bertpt.config.schema import Model
from bertpt.config.schema import Optimizer as OptimizerConfig
from bertpt.errors import BertptError, RequestError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.checkpoints.checkpoint import checkpoints, newest_checkpoint, open_checkpoint, restore, restore_random
from bertpt.train.checkpoints.saving import remove_halves, save_checkpoint
from bertpt.train.pretrain import pretraining_counts, pretraining_objective
from bertpt.train.updates.optim import build_optimizer
from bertpt.train.updates.step import Totals, train_step

VOCAB = 40


def quiet(_: str) -> None:
    pass


def made(
    *, seed: int = 0, correction: bool = True, config: Model | None = None
) -> tuple[BertForPreTraining, Optimizer]:
    torch.manual_seed(seed)
    model = BertForPreTraining(config or small(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1), VOCAB)
    return model, build_optimizer(model, OptimizerConfig(lr=1e-2, bias_correction=correction))


def updates(model: BertForPreTraining, optimizer: Optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        rows = padded_rows(VOCAB, [7, 9, 4], seed=number)
        train_step(
            model, optimizer, [packed(rows, labels(rows, VOCAB, seed=number))], pretraining_objective,
            pretraining_counts, Totals.empty(), weights={"mlm": 1.0, "nsp": 1.0}, lr=1e-2, clip=1.0, precision="fp32",
        )  # fmt: skip


def save(run: Path, step: int, *, keep: int = 2, seed: int = 0, state: dict[str, Any] | None = None) -> Path:
    model, optimizer = made(seed=seed)
    return save_checkpoint(run, step, model, optimizer, state or {"starts": [[0]]}, keep=keep)


def steps(run: Path) -> list[int]:
    return [step for step, _ in checkpoints(run)]


# --- round trip -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [True, False])
def test_weights_optimizer_and_random_state_come_back_bit_for_bit(tmp_path: Path, correction: bool) -> None:
    model, optimizer = made(correction=correction)
    updates(model, optimizer, 0, 3)
    state = {"starts": [[0, 5], [0]], "vocab_size": VOCAB}
    save_checkpoint(tmp_path, 3, model, optimizer, state, keep=2)
    updates(model, optimizer, 3, 6)  # dropout draws from the random state

    other, other_optimizer = made(seed=1, correction=correction)
    checkpoint = newest_checkpoint(tmp_path, quiet)
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state) == (3, state)
    restore(checkpoint, other, other_optimizer)
    assert restore_random(checkpoint) == 1
    updates(other, other_optimizer, 3, 6)

    names = {id(parameter): name for name, parameter in other.named_parameters()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    by_name = dict(model.named_parameters())
    assert len(other_optimizer.state) == len(by_name)
    for parameter, values in other_optimizer.state.items():
        expected = optimizer.state[by_name[names[id(parameter)]]]
        assert values.keys() == expected.keys()
        for key, value in values.items():
            assert torch.equal(value, expected[key]), (names[id(parameter)], key)
    drawn = torch.rand(3)
    assert restore_random(checkpoint) == 1
    assert not torch.equal(torch.rand(3), drawn)  # the state was set, not merely left alone


def test_weights_alone_leave_the_random_state_alone(tmp_path: Path) -> None:
    save(tmp_path, 1)
    model, _ = made(seed=1)
    before = torch.get_rng_state()
    restore(open_checkpoint(checkpoints(tmp_path)[0][1]), model)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(model.state_dict()["cls.predictions.transform.dense.weight"],
                       made(seed=0)[0].state_dict()["cls.predictions.transform.dense.weight"])  # fmt: skip


def test_the_tied_embedding_is_saved_once_and_stays_tied(tmp_path: Path) -> None:
    directory = save(tmp_path, 1)
    saved = open_checkpoint(directory).tensors("model")
    assert [name for name, tensor in saved.items() if VOCAB in tensor.shape] == [
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.bias",
    ]


# --- damage ---------------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x01
    path.write_bytes(content)


FILES = ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json", "manifest.json"]
DAMAGE = {
    "flipped byte": lambda path: flip(path, path.stat().st_size // 2),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    model, optimizer = made()
    updates(model, optimizer, 0, 1)
    for step in (10, 20):
        save_checkpoint(tmp_path, step, model, optimizer, {"starts": [[0]]}, keep=2)
    newest = checkpoints(tmp_path)[1][1]
    DAMAGE[damage](newest / name)
    said: list[str] = []
    checkpoint = newest_checkpoint(tmp_path, said.append)
    assert checkpoint is not None
    assert checkpoint.step == 10
    assert len(said) == 1
    assert "\n" not in said[0]
    assert (name if name != "manifest.json" else "step-00000020") in said[0]


def test_any_flipped_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    directory = save(tmp_path, 16)
    manifest = directory / "manifest.json"
    content = manifest.read_bytes()
    for at in range(0, len(content), 3):
        for bit in (0x01, 0x10):
            changed = bytearray(content)
            changed[at] ^= bit
            manifest.write_bytes(changed)
            with pytest.raises(RequestError):
                open_checkpoint(directory)


def test_all_damaged_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    for step in (1, 2):
        flip(save(tmp_path, step) / "model.safetensors", 200)
    said: list[str] = []
    with pytest.raises(BertptError) as caught:
        newest_checkpoint(tmp_path, said.append)
    assert len(said) == 2
    assert "\n" not in str(caught.value)
    assert "--overwrite" in str(caught.value)


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path, quiet) is None
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)  # not a name that is ours
    (tmp_path / "checkpoints" / ".step-00000003.99.tmp").mkdir()
    assert newest_checkpoint(tmp_path, quiet) is None


# --- rotation -------------------------------------------------------------------------------------------------------


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    for step in (9900, 10_000, 99_999_999, 100_000_000):
        save(tmp_path, step, keep=2)
    assert steps(tmp_path) == [99_999_999, 100_000_000]
    for step in (9900, 10_000):
        save(tmp_path / "b", step, keep=1)
    assert steps(tmp_path / "b") == [10_000]


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_so_many_are_kept(tmp_path: Path, keep: int) -> None:
    for step in range(1, 6):
        save(tmp_path, step, keep=keep)
    assert steps(tmp_path) == list(range(1, 6))[-keep:]


def test_nothing_is_removed_before_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, keep=1)

    def full_disk(*arguments: object, **options: object) -> None:
        assert steps(tmp_path) == [1]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertpt.train.checkpoints.saving.write_manifest", full_disk)
    with pytest.raises(BertptError, match="No space left"):
        save(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [1]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert open_checkpoint(checkpoints(tmp_path)[0][1]).step == 1


def test_a_damaged_newer_checkpoint_does_not_push_out_the_intact_one(tmp_path: Path) -> None:
    """After a resume from an older one, saving goes on below the damaged number."""
    save(tmp_path, 10)
    flip(save(tmp_path, 30) / "model.safetensors", 200)
    save(tmp_path, 20, keep=2)
    intact = []
    for step, directory in checkpoints(tmp_path):
        try:
            open_checkpoint(directory)
            intact.append(step)
        except RequestError:
            pass
    assert intact == [10, 20]


def test_what_a_kill_while_saving_leaves_is_never_used_and_is_removed_by_the_next_save(tmp_path: Path) -> None:
    directory = save(tmp_path, 1)
    half = tmp_path / "checkpoints" / ".step-00000002.4194304.tmp"
    shutil.copytree(directory, half)
    (half / "manifest.json").unlink()
    checkpoint = newest_checkpoint(tmp_path, quiet)
    assert checkpoint is not None
    assert checkpoint.step == 1
    save(tmp_path, 2)
    assert not half.exists()


def test_a_kill_while_old_ones_are_removed_leaves_no_half_under_a_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, **_: object) -> None:
        if "step-00000001" in path.name:
            (path / "manifest.json").unlink()
            raise MemoryError

    save(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr("bertpt.train.checkpoints.saving.shutil.rmtree", killed)
        with pytest.raises(MemoryError):
            save(tmp_path, 2, keep=1)
    assert [open_checkpoint(directory).step for _, directory in checkpoints(tmp_path)] == [2]
    remove_halves(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


# --- fit ------------------------------------------------------------------------------------------------------------


def test_another_shape_is_refused_naming_the_tensors(tmp_path: Path) -> None:
    directory = save(tmp_path, 1)
    other, _ = made(config=small(intermediate_size=40))
    with pytest.raises(RequestError) as caught:
        restore(open_checkpoint(directory), other)
    line = str(caught.value)
    assert "\n" not in line
    assert "bert.encoder.layer.0.intermediate.dense.weight has shape [96, 24], the model [40, 24]" in line


@pytest.mark.parametrize(
    ("layers", "says"),
    [(3, "missing bert.encoder.layer.2."), (1, "unexpected bert.encoder.layer.1.")],
)
def test_missing_and_unexpected_names_are_refused(tmp_path: Path, layers: int, says: str) -> None:
    directory = save(tmp_path, 1)
    other, _ = made(config=small(num_hidden_layers=layers))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(RequestError, match=re.escape(says)):
        restore(open_checkpoint(directory), other)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("fault", ["name", "shape"])
def test_moments_of_another_model_are_refused_and_nothing_is_loaded(tmp_path: Path, fault: str) -> None:
    model, optimizer = made()
    updates(model, optimizer, 0, 1)
    directory = save_checkpoint(tmp_path, 1, model, optimizer, {}, keep=1)
    checkpoint = open_checkpoint(directory)
    moments = checkpoint.tensors("optimizer")
    moment = moments.pop("cls.predictions.bias/exp_avg")
    moments["cls.predictions.other/exp_avg" if fault == "name" else "cls.predictions.bias/exp_avg"] = moment[:-1]
    save_file(moments, directory / "optimizer.safetensors")
    other, other_optimizer = made(seed=1)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(RequestError, match=r"optimizer\.safetensors: .*cls\.predictions\.(other|bias)/exp_avg \[39\]"):
        restore(checkpoint, other, other_optimizer)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


# --- format ---------------------------------------------------------------------------------------------------------


def test_nothing_is_pickled() -> None:
    source = Path(bertpt.__file__).parent
    forbidden = re.compile(
        r"torch\.(load|save)\(|^\s*(import|from)\s+(pickle|dill|joblib|shelve|marshal)\b|allow_pickle=True", re.M
    )
    files = sorted(source.rglob("*.py"))
    assert len(files) > 30
    # Files of others may be pickled: their one reader takes tensors alone.
    reader = source / "interop" / "weights.py"
    calls = [line for line in reader.read_text(encoding="utf-8").split("\n") if forbidden.search(line)]
    assert len(calls) == 1
    assert "weights_only=True" in calls[0]
    files.remove(reader)
    found = [str(path) for path in files if forbidden.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_a_checkpoint_is_safetensors_and_json_with_a_hash_of_each(tmp_path: Path) -> None:
    directory = save(tmp_path, 7)
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    assert sorted(manifest["files"]) == sorted(set(FILES) - {"manifest.json"})
    assert all(re.fullmatch("[0-9a-f]{64}", facts["sha256"]) for facts in manifest["files"].values())
    assert json.loads((directory / "state.json").read_text(encoding="utf-8")) == {"starts": [[0]]}

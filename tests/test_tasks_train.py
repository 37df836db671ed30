"""Fine-tuning from files to scores: learning, the best epoch, resume, seeds, commands."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from task_helpers import encoder, fit, labelled, plain_task, predicted, silent, task_config, write_tsv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_helpers import Tiny, quiet, write_config

from bertpt.cli.main import run as command
from bertpt.config import plain
from bertpt.config.finetune.common import Limits
from bertpt.errors import BertptError, RequestError, Stopped
from bertpt.interop.finetuning import read_start
from bertpt.tasks import finetune as finetuning
from bertpt.tasks.encode import epoch_order
from bertpt.tasks.evaluation import SplitScores, TaskEvaluation, evaluate_task_run
from bertpt.tasks.finetune import finetune, finetune_seeds
from bertpt.tasks.kinds import TASKS, build
from bertpt.tasks.rundir import open_task_run
from bertpt.tasks.work import FineTuning
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.pretrain import pretrain
from bertpt.train.reports.logs import read_metrics


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run ``t``."""
    folder = tmp_path_factory.mktemp("task")
    fit(task_config(folder))
    return folder


def test_it_learns_and_scores_the_best_epoch_on_dev_and_test(trained: Path) -> None:
    scores = json.loads((trained / "runs/t/eval.json").read_text("utf-8"))
    assert scores["labels"] == ["no", "yes"]
    for split in ("dev", "test"):
        assert scores["splits"][split]["scores"]["accuracy"] > 0.9
        assert scores["splits"][split]["baseline"]["accuracy"] == 0.5
        assert np.sum(scores["splits"][split]["confusion"]) == 24
    assert (trained / "runs/t/best/model.safetensors").is_file()
    assert len(checkpoints(trained / "runs/t")) == 1
    board = EventAccumulator(str(trained / "runs/t/tb")).Reload()
    shown = board.Tensors("run/config/text_summary")[0].tensor_proto.string_val[0].decode("utf-8")
    config = (trained / "runs/t/task.yaml").read_text("utf-8")
    assert shown == "\n".join(f"    {line}" for line in config.splitlines())
    for kind in ("train", "heldout"):
        assert EventAccumulator(str(trained / "runs/t/tb" / kind)).Reload().Tags()["scalars"]


def test_the_table_has_the_baseline_of_each_split() -> None:
    def split(rows: int, score: float, base: float) -> SplitScores:
        return SplitScores(rows, 0, {"accuracy": score, "loss": 0.5}, {"accuracy": base}, {})

    facts = {"labels": ["no", "yes"]}
    found = TaskEvaluation(
        "runs/t",
        "classification",
        "accuracy",
        2,
        10,
        facts,
        {"dev": split(24, 0.75, 0.5), "test": split(9, 0.25, 0.125)},
    )
    lines = found.table().splitlines()
    assert lines[1].split() == ["dev", "(24)", "baseline", "test", "(9)", "baseline"]
    assert lines[2].split() == ["accuracy", "0.7500", "0.5000", "0.2500", "0.1250"]
    assert lines[3].split() == ["loss", "0.5000", "0.5000"]
    assert lines[4] == "  baseline: without text"
    ends = [[match.end() for match in re.finditer(r"\S+(?: \(\d+\))?", line[2:])] for line in (lines[1], lines[2])]
    assert ends[0] == ends[1][1:]  # numbers stand under their titles


def test_each_epoch_is_scored_once_and_the_first_highest_score_is_the_best(trained: Path) -> None:
    entries = read_metrics(trained / "runs/t/metrics.jsonl")
    heldout = [(entry["step"], entry["accuracy"]) for entry in entries if entry["kind"] == "heldout"]
    assert [step for step, _ in heldout] == [5, 10, 15, 20]  # 48 rows in batches of 10
    best = max(heldout, key=lambda pair: (pair[1], -pair[0]))
    state = json.loads((trained / "runs/t/best/state.json").read_text("utf-8"))["best"]
    assert (state["step"], state["score"]) == best


def test_evaluating_again_gives_the_same_scores(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((trained / "runs/t/eval.json").read_text("utf-8"))
    assert command(["eval", str(trained / "runs/t"), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == before
    assert command(["eval", str(trained / "runs/t")]) == 0
    shown = capsys.readouterr().out
    assert "true label by predicted one" in shown
    assert "accuracy" in shown


def test_predictions_stand_beside_their_text(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "runs/t/predictions-test.jsonl").read_text("utf-8").splitlines()]
    rows = [line.split("\t") for line in (trained / "test.tsv").read_text("utf-8").splitlines()[1:]]
    assert [[line["text"], line["true"]] for line in lines] == rows
    accuracy = np.mean([line["label"] == line["true"] for line in lines])
    scores = json.loads((trained / "runs/t/eval.json").read_text("utf-8"))["splits"]["test"]["scores"]
    assert accuracy == scores["accuracy"]


def test_a_stopped_run_goes_on_to_the_same_weights(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained
    config = task_config(folder, name="stopped", train={"save_every": 3})
    start_ = read_start(config, say=silent)

    class Killed(Exception):
        pass

    updates = FineTuning.updates

    def until(self: FineTuning, done: int):  # type: ignore[no-untyped-def]
        for step, batches in enumerate(updates(self, done), done):
            if step == 13:  # in the middle of the third epoch, after the checkpoint of update 12
                raise Killed
            yield batches

    monkeypatch.setattr(FineTuning, "updates", until)
    with pytest.raises(Killed):
        finetune(config, start_, say=silent, progress=False)
    monkeypatch.setattr(FineTuning, "updates", updates)
    said: list[str] = []
    finetune(config, start_, say=said.append, progress=False)
    assert any("going on from" in line and "update 12 of 20" in line for line in said)
    for place in ("best", "checkpoints/step-00000020"):
        one, other = (load_file(folder / "runs" / name / place / "model.safetensors") for name in ("t", "stopped"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    steps = [e["step"] for e in read_metrics(folder / "runs/stopped/metrics.jsonl") if e["kind"] == "train"]
    assert steps == list(range(1, 21))


def test_a_signal_saves_and_the_same_command_goes_on(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task_config(trained, runs_dir=str(tmp_path))
    updates = FineTuning.updates

    def signalled(self: FineTuning, done: int):  # type: ignore[no-untyped-def]
        for step, batches in enumerate(updates(self, done), done):
            if step == 10:  # comes while update 11 is computed, the first of the third epoch
                signal.raise_signal(signal.SIGTERM)
            yield batches

    monkeypatch.setattr(FineTuning, "updates", signalled)
    with pytest.raises(Stopped, match="stopped by SIGTERM after update 11"):
        fit(config)
    monkeypatch.setattr(FineTuning, "updates", updates)
    fit(config)
    one, other = (load_file(runs / "t/best/model.safetensors") for runs in (trained / "runs", tmp_path))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_configuration_or_changed_files_are_refused_under_the_same_name(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    folder = tmp_path / "copy"
    value = {
        "data": {"train": str(folder / "train.tsv"), "dev": str(folder / "dev.tsv")},
        "runs_dir": str(folder / "runs"),
    }
    fit(task_config(trained, **value))  # moved files are the same files
    with pytest.raises(RequestError, match=r"train\.lr: 0\.005 there, 0\.001 now"):
        fit(task_config(trained, **value, train={"lr": 1e-3}))
    write_tsv(folder / "train.tsv", labelled(48, ["no", "yes"], 9))
    with pytest.raises(RequestError, match=r"inputs\.train"):
        fit(task_config(trained, **value))
    write_tsv(folder / "dev.tsv", labelled(24, ["no", "yes"], 9))
    write_config(folder / "runs/t/task.yaml", plain(task_config(trained, **value)))
    with pytest.raises(RequestError, match="not the file by which"):
        evaluate_task_run(folder / "runs/t", say=silent)


@pytest.mark.parametrize("parts", [2, 3, 10])
def test_a_batch_computed_in_parts_gives_the_same_losses_and_weights(parts: int, trained: Path, tmp_path: Path) -> None:
    """Also the last batch of an epoch, of 8 rows, in parts of unequal size; with weights of the labels."""
    train = {"dropout": 0.0, "epochs": 2, "class_weights": "balanced"}
    for name, accumulation in (("whole", 1), ("parts", parts)):
        sections = {"name": name, "runs_dir": str(tmp_path), "train": train | {"accumulation": accumulation}}
        fit(task_config(trained, **sections))
    whole, cut = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    assert len(whole) == len(cut)
    for one, other in zip(whole, cut, strict=True):
        for key in one.keys() & {"label_loss", "label_accuracy", "gradient_norm", "loss", "accuracy"}:
            assert other[key] == pytest.approx(one[key], rel=1e-4, abs=1e-6), key
    one, other = (load_file(tmp_path / name / "best/model.safetensors") for name in ("whole", "parts"))
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-3, atol=2e-5)


def test_a_score_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    rows = [(text, str(len(text) % 5)) for text, _ in labelled(24, ["a"], 0)]
    write_tsv(tmp_path / "train.tsv", rows)
    write_tsv(tmp_path / "dev.tsv", [(text, "3") for text, _ in rows])  # constant: no correlation
    config = task_config(tmp_path, regression=True, data={"test": None}, train={"epochs": 2})
    with pytest.raises(BertptError, match="pearson on dev was no number"):
        fit(config)
    assert not (tmp_path / "runs/t/best").exists()


def test_the_order_of_an_epoch_follows_from_seed_and_epoch_alone() -> None:
    orders = {(seed, epoch): epoch_order(seed, epoch, 50).tolist() for seed in (0, 1) for epoch in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert epoch_order(0, 1, 50).tolist() == orders[0, 1]


def test_several_seeds_give_mean_and_standard_deviation(trained: Path, tmp_path: Path) -> None:
    config = task_config(trained, runs_dir=str(tmp_path), train={"epochs": 1, "lr": 1e-3})
    table = finetune_seeds(config, read_start(config, say=silent), [0, 1, 2], say=silent, progress=False)
    value = json.loads((tmp_path / "t-seeds.json").read_text("utf-8"))["splits"]["dev"]["loss"]
    each = [
        json.loads((tmp_path / f"t-seed-{seed}/eval.json").read_text("utf-8"))["splits"]["dev"]["scores"]["loss"]
        for seed in range(3)
    ]
    assert len(set(each)) == 3
    assert value["mean"] == pytest.approx(np.mean(each))
    assert value["sd"] == pytest.approx(np.std(each, ddof=1))
    assert "+-" in table.table()


def test_new_parts_are_named_and_a_trained_pooler_is_loaded(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = task_config(trained, name="said", runs_dir=str(tmp_path), train={"epochs": 1})
    fit(config, lines=said)
    assert any(line.startswith("new, at random: classifier;") for line in said)
    masked = encoder(tmp_path, "BertForMaskedLM")
    said = []
    fit(
        task_config(trained, name="masked", runs_dir=str(tmp_path), **{"from": str(masked)}, train={"epochs": 1}),
        lines=said,
    )
    assert any("pooler (these weights were trained without sentence pairs), classifier" in line for line in said)
    theirs = load_file(trained / "encoder-BertForPreTraining/model.safetensors")
    made = build(open_task_run(trained / "runs/t").facts)
    finetuning.take_encoder(made, read_start(config, say=silent))
    assert torch.equal(made.bert.pooler.dense.weight, theirs["bert.pooler.dense.weight"])  # type: ignore[union-attr]


def test_a_run_of_ours_is_fine_tuned_and_a_random_encoder_of_its_shape_is_the_control(
    tiny: Tiny, trained: Path, tmp_path: Path
) -> None:
    run = pretrain(tiny.config(tmp_path, name="pre"), say=quiet, progress=False)
    one = task_config(trained, runs_dir=str(tmp_path), **{"from": str(run.directory)}, train={"epochs": 1})
    fit(one)
    control = task_config(
        trained,
        name="control",
        runs_dir=str(tmp_path),
        **{"from": "random", "like": str(run.directory)},
        train={"epochs": 1},
    )
    said: list[str] = []
    fit(control, lines=said)
    assert "a random encoder, as a control: every weight is new" in said
    sizes = [
        {name: list(t.shape) for name, t in load_file(tmp_path / name / "best/model.safetensors").items()}
        for name in ("t", "control")
    ]
    assert sizes[0] == sizes[1]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    other = task_config(
        trained,
        name="shape",
        runs_dir=str(tmp_path),
        **{"from": "random", "like": str(run.tokenizer), "model": shape},
        train={"epochs": 1},
    )
    fit(other)
    assert load_file(tmp_path / "shape/best/model.safetensors")["bert.pooler.dense.weight"].shape == (16, 16)


def test_a_fine_tuned_run_is_named_where_a_pre_trained_one_is_expected(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["predict", "fill-mask", "a", "--model", str(trained / "runs/t")]) == 2
    assert "is a fine-tuned run" in capsys.readouterr().err


def test_the_command_trains_and_its_faults_are_single_lines(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(
        write_config(tmp_path / "c.yaml", plain_task(trained, runs_dir=str(tmp_path / "runs"), train={"epochs": 1}))
    )
    assert command(["finetune", "sentiment", "--config", path]) == 2
    assert "task is classification; type: bertpt finetune classification" in capsys.readouterr().err
    assert command(["finetune", "classification", "-c", path, "--set", "train.lrr=1", "--set", "from=random"]) == 2
    assert "train.lrr: unknown key; did you mean lr?" in capsys.readouterr().err
    assert command(["finetune", "classification", "-c", path, "--seeds", "0,0"]) == 2
    assert "--seeds: 0,0" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert command(["finetune", "classification", "-c", path, "--dry-run", "-q"]) == 0
    assert not (tmp_path / "runs").exists()
    assert command(["finetune", "classification", "-c", path, "-q", "--json"]) == 0
    assert "dev" in json.loads(capsys.readouterr().out.splitlines()[-1])["splits"]


def test_predictions_equal_those_of_the_evaluation(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = [json.loads(line) for line in (trained / "runs/t/predictions-dev.jsonl").read_text("utf-8").splitlines()]
    texts = [line["text"] for line in expected]
    found = predicted(trained / "runs/t", texts)
    for one, other in zip(found, expected, strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    file = trained / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    arguments = ["predict", "classification", "--file", str(file), "--runs-dir", str(trained / "runs"), "-q"]
    assert command([*arguments[:4], "--model", str(trained / "runs/t"), "-q"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == found


def test_texts_that_are_too_long_are_cut_and_counted(trained: Path) -> None:
    said: list[str] = []
    [found, _] = predicted(trained / "runs/t", ["a " * 500, ""], say=said.append)
    [same] = predicted(trained / "runs/t", ["a " * 30])
    assert found["probabilities"] == same["probabilities"]
    assert said == ["1 of 2 rows cut to 32 tokens, as in training"]


def test_limits_keep_the_same_rows_for_every_seed(trained: Path, tmp_path: Path) -> None:
    config = task_config(trained, runs_dir=str(tmp_path), data={"limit": Limits(train=20, dev=6).model_dump()})
    one = finetuning.read_splits(TASKS["classification"], config)
    assert [len(one.examples[split]) for split in ("train", "dev", "test")] == [20, 6, 6]
    other = finetuning.read_splits(
        TASKS["classification"], config.model_copy(update={"train": config.train.model_copy(update={"seed": 7})})
    )
    assert one.examples["train"] == other.examples["train"]

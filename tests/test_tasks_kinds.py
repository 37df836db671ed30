"""Pairs, regression, sentiment: scores against other definitions, exports against transformers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from task_helpers import fit, labelled, predicted, silent, task_config, write_tsv

from bertpt.batch import Batch
from bertpt.cli.main import run as command
from bertpt.errors import RequestError
from bertpt.interop.export_task import export_task
from bertpt.interop.finetuning import read_start
from bertpt.model.sequence import BertForSequenceClassification
from bertpt.tasks.classification.classification import RowObjective, class_weights
from bertpt.tasks.evaluation import open_best
from bertpt.tasks.metrics import class_scores, number_scores
from bertpt.tasks.rundir import open_task_run


def pair_rows(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Whether the second text begins as the first, and how many letters they share."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        one, other = ([draw.choice("abcd") for _ in range(3)] for _ in range(2))
        rows.append((" ".join(one), " ".join(other), f"{len(set(one) & set(other)) + draw.random():.2f}"))
    return rows


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished regression of pairs, ``t``."""
    folder = tmp_path_factory.mktemp("regression")
    for split, count in (("train", 60), ("dev", 30)):
        write_tsv(folder / f"{split}.tsv", pair_rows(count, count), ("one", "two", "score"))
    data = {"text": "one", "pair": "two", "label": "score", "test": None}
    fit(task_config(folder, regression=True, data=data, train={"epochs": 2}))
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished classification of pairs, ``t``."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, count in (("train", 60), ("dev", 30)):
        rows = [(one, two, "alike" if float(s) >= 2 else "other") for one, two, s in pair_rows(count, count)]
        write_tsv(folder / f"{split}.tsv", rows, ("one", "two", "is"))
    data = {"text": "one", "pair": "two", "label": "is", "test": None}
    fit(task_config(folder, data=data, train={"epochs": 2}))
    return folder


@pytest.fixture(scope="module")
def feeling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished sentiment run with the deeper head, ``t``."""
    folder = tmp_path_factory.mktemp("sentiment")
    for split, count in (("train", 75), ("dev", 25)):
        rows = [f"__label__{label}\t{text}" for text, label in labelled(count, ["1", "2", "3", "4", "5"], count)]
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    maps = {1: "negative", 2: "negative", 3: "neutral", 4: "positive", 5: "positive"}
    fit(
        task_config(
            folder,
            task="sentiment",
            data={"format": "fasttext", "label_map": maps, "test": None},
            head={"kind": "deep", "width": 20},
            train={"class_weights": "balanced", "metric": "f1_macro", "epochs": 10},
        )
    )
    return folder


def test_a_regression_is_scored_by_correlations(number: Path) -> None:
    value = json.loads((number / "runs/t/eval.json").read_text("utf-8"))
    scores = value["splits"]["dev"]["scores"]
    assert value["metric"] == "pearson"
    rows = [json.loads(line) for line in (number / "runs/t/predictions-dev.jsonl").read_text("utf-8").splitlines()]
    true, found = np.array([[float(row["true"]), row["score"]] for row in rows]).T
    assert scores["pearson"] == pytest.approx(np.corrcoef(true, found)[0, 1], abs=0.01)  # these are rounded
    ranks = [np.argsort(np.argsort(values)) for values in (true, found)]
    assert scores["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=0.02)  # ties count in ours
    assert scores["mse"] == pytest.approx(float(((true - found) ** 2).mean()), rel=1e-4)
    assert "confusion" not in value["splits"]["dev"]


def test_sentiment_has_three_classes_a_deeper_head_and_a_confusion_matrix(feeling: Path) -> None:
    value = json.loads((feeling / "runs/t/eval.json").read_text("utf-8"))
    assert value["labels"] == ["negative", "neutral", "positive"]
    assert [sum(row) for row in value["splits"]["dev"]["confusion"]] == [10, 5, 10]
    assert value["splits"]["dev"]["scores"]["f1_macro"] > 0.5  # 0.19 for one label
    model, _ = open_best(open_task_run(feeling / "runs/t"))
    kinds = [type(module).__name__ for module in model.classifier.children()]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear"]
    assert model.classifier[0].weight.shape == (20, 24)  # type: ignore[index]


def test_a_deeper_head_is_not_exported(feeling: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"its head is deep .* head\.kind=linear"):
        export_task(feeling / "runs/t", tmp_path / "out", say=silent)
    assert not (tmp_path / "out").exists()


def theirs(directory: Path, rows: list[Any]) -> list[Any]:
    from transformers import pipeline

    return list(pipeline("text-classification", model=str(directory), device="cpu")(rows, top_k=None))


def test_transformers_says_the_same_of_pairs_by_the_names_of_the_labels(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command(["export", "hf", str(pairs / "runs/t"), str(out), "--json", "-q"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["architecture"] == "BertForSequenceClassification"
    assert done["difference"] == 0
    assert done["difference_transformers"] < 1e-5
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert config["id2label"] == {"0": "alike", "1": "other"}
    given = [("a b c", "a d"), ("d", "b"), ("A, a.", "[x]")]
    found = predicted(pairs / "runs/t", ["\t".join(each) for each in given])
    other = theirs(out, [{"text": one, "text_pair": two} for one, two in given])
    for ours, scores in zip(found, other, strict=True):
        expected = {each["label"]: each["score"] for each in scores}
        assert ours["probabilities"] == pytest.approx(expected, abs=1e-5)
    card = (out / "README.md").read_text("utf-8")
    dev = json.loads((pairs / "runs/t/eval.json").read_text("utf-8"))["splits"]["dev"]
    assert f"| accuracy | {dev['scores']['accuracy']:.4f} | {dev['baseline']['accuracy']:.4f} |" in card
    assert "Baseline: without text." in card


def test_transformers_says_the_same_number(number: Path, tmp_path: Path) -> None:
    export_task(number / "runs/t", tmp_path / "out", say=silent)
    [found] = predicted(number / "runs/t", ["a b\tc"])
    [[other]] = theirs(tmp_path / "out", [{"text": "a b", "text_pair": "c"}])
    assert found["score"] == pytest.approx(other["score"], abs=1e-5)


def test_an_export_leaves_what_is_there(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    with pytest.raises(RequestError, match="is there already"):
        export_task(pairs / "runs/t", tmp_path, say=silent)


def test_a_text_that_is_no_pair_is_refused_before_any_work(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(pairs / "runs/t")
    assert command(["predict", "classification", "a\tb", "c", "--model", run]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "argument 2: 1 texts; this run is of pairs: two texts with a tab between" in captured.err


# --- numbers --------------------------------------------------------------------------------------------------


def test_scores_equal_their_definitions() -> None:
    draw = np.random.default_rng(0)
    labels, found = draw.integers(0, 2, 200), draw.integers(0, 2, 200)
    tp, fp = int((labels & found).sum()), int(((1 - labels) & found).sum())
    fn, tn = int((labels & (1 - found)).sum()), int(((1 - labels) & (1 - found)).sum())
    scores = class_scores(labels, found, 2)
    assert scores["accuracy"] == pytest.approx((tp + tn) / 200)
    assert scores["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert scores["f1_macro"] == pytest.approx((scores["f1"] + 2 * tn / (2 * tn + fp + fn)) / 2)
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert scores["matthews"] == pytest.approx((tp * tn - fp * fn) / root)
    constant = class_scores(labels, np.zeros_like(labels), 2)
    assert constant["matthews"] == 0.0
    # A class that nobody has counts as 0 in the mean over classes.
    assert class_scores(np.array([0, 1]), np.array([0, 1]), 3)["f1_macro"] == pytest.approx(2 / 3)


def test_a_correlation_with_a_constant_is_no_number() -> None:
    scores = number_scores(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0]))
    assert math.isnan(scores["pearson"])
    assert scores["mse"] == pytest.approx(2 / 3)


def test_balanced_weights_give_each_label_the_same_say_and_average_one(tmp_path: Path) -> None:
    config = task_config(tmp_path, train={"class_weights": "balanced"})
    labels = torch.tensor([0] * 6 + [1] * 2)
    weights = class_weights(config.train, labels, ["no", "yes"])
    assert weights is not None
    assert weights.tolist() == pytest.approx([8 / 12, 2.0])
    assert float(weights[labels].mean()) == pytest.approx(1.0)
    given = class_weights(task_config(tmp_path, train={"label_weights": {"yes": 3}}).train, labels, ["no", "yes"])
    assert given is not None
    assert given.tolist() == [1.0, 3.0]


def test_loss_and_logits_equal_those_of_transformers(tmp_path: Path) -> None:
    """The same weights in both, a padded batch of two rows."""
    import transformers

    from bertpt.interop.names import to_hf

    start = read_start(task_config(tmp_path), say=silent)
    model = BertForSequenceClassification(start.model, len(start.tokens), 3, dropout=0.0).eval()
    config = transformers.BertConfig(
        vocab_size=len(start.tokens),
        num_labels=3,
        **start.model.model_dump(include=set(transformers.BertConfig().to_dict())),
    )
    other = transformers.BertForSequenceClassification(config).eval()
    other.load_state_dict(to_hf(model.state_dict(), len(start.tokens)), strict=True)
    ids = torch.tensor([[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels = torch.tensor([2, 0])
    theirs_ = other(ids, mask, torch.zeros_like(ids), labels=labels)
    batch = Batch.from_padded(ids, mask, torch.zeros_like(ids), row_labels=labels)
    terms = RowObjective(regression=False)(model, batch)
    assert torch.allclose(model(batch), theirs_.logits, atol=1e-6)
    assert terms.losses["label"].sum.item() / 2 == pytest.approx(theirs_.loss.item(), abs=1e-6)

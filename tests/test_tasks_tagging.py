"""Entities and tags from files to scores, predictions and exports; against sets, enumeration and transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from task_helpers import encoder, fit, plain_task, silent

from bertpt.batch import Batch
from bertpt.cli.main import run as command
from bertpt.config import FinetuneConfig, validate_finetune
from bertpt.interop.export_task import export_task
from bertpt.interop.finetuning import read_start
from bertpt.model.token import BertForTokenClassification
from bertpt.predict.tagging import split_texts
from bertpt.predict.tasks import TaskPredictor
from bertpt.predict.texts import Text
from bertpt.tasks.evaluation import open_best
from bertpt.tasks.finetune import finetune
from bertpt.tasks.metrics import entity_scores, tag_scores
from bertpt.tasks.rundir import open_task_run
from bertpt.tasks.tagging.iob import legal
from bertpt.tasks.tagging.tagging import decode, words_objective
from bertpt.tasks.tagging.words import encode_words, windows
from bertpt.tasks.work import FineTuning

Rows = list[list[tuple[str, str]]]


def tagged(count: int, seed: int) -> Rows:
    """What ``x`` is, and ``r`` after it, is told by other words of the sentence: ``p`` or ``l``."""
    draw = random.Random(seed)
    found: Rows = []
    for number in range(count):
        kind = ("PER", "LOC")[number % 2]
        parts = [[(kind[0].lower(), "O")]] * 3 + [[(draw.choice("abc"), "O")] for _ in range(draw.randint(0, 3))]
        for _ in range(2):
            parts.append([("x", f"B-{kind}")] + [("r", f"I-{kind}")] * draw.randint(0, 1))
        draw.shuffle(parts)
        found.append([pair for part in parts for pair in part])
    draw.shuffle(found)
    return found


def part_of_speech(tag: str) -> str:
    """A tag that is no entity: P, L, I, O."""
    return tag[2] if tag.startswith("B-") else tag[0]


def write_conll(path: Path, rows: Rows) -> None:
    text = "\n\n".join("\n".join(f"{word} X {tag}" for word, tag in row) for row in rows)
    path.write_text(f"-DOCSTART- X O\n\n{text}\n", encoding="utf-8")


def write_conllu(path: Path, rows: Rows) -> None:
    lines = [
        "".join(f"{n}\t{word}\t_\t{part_of_speech(tag)}\t_\t_\t0\troot\t_\t_\n" for n, (word, tag) in enumerate(row, 1))
        for row in rows
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def config_of(folder: Path, task: str, **sections: Any) -> FinetuneConfig:
    write, ending = (write_conll, "conll") if task == "ner" else (write_conllu, "conllu")
    for split, count, seed in (("train", 60, 0), ("dev", 20, 1), ("test", 20, 2)):
        if not (folder / f"{split}.{ending}").is_file():
            write(folder / f"{split}.{ending}", tagged(count, seed))
    encoder(folder)
    data = {split: str(folder / f"{split}.{ending}") for split in ("train", "dev", "test")}
    return validate_finetune(plain_task(folder, **({"task": task, "data": data, "name": task} | sections)))


KINDS = {"ner": {}, "ner-crf": {"head": {"crf": True}}, "tagging": {}, "tagging-crf": {"head": {"crf": True}}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs ``ner``, ``ner-crf``, ``tagging`` and ``tagging-crf``."""
    folder = tmp_path_factory.mktemp("tagging")
    for name, sections in KINDS.items():
        fit(config_of(folder, name.removesuffix("-crf"), name=name, **sections))
    return folder


def scores_of(folder: Path, name: str, split: str = "test") -> dict[str, Any]:
    return dict(json.loads((folder / f"runs/{name}/eval.json").read_text("utf-8"))["splits"][split])


def predictions(folder: Path, name: str, split: str = "test") -> list[dict[str, Any]]:
    text = (folder / f"runs/{name}/predictions-{split}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["ner", "ner-crf"])
def test_entities_are_learnt_beyond_what_a_word_alone_tells(trained: Path, name: str) -> None:
    found = scores_of(trained, name)
    assert found["scores"]["f1"] > found["baseline"]["f1"] + 0.05
    assert found["baseline"]["f1"] > 0.2


@pytest.mark.parametrize("name", ["tagging", pytest.param("tagging-crf", marks=pytest.mark.slow)])
def test_tags_are_learnt_beyond_what_a_word_alone_tells(tmp_path: Path, name: str) -> None:
    """A word alone tells 86% of them, the words around it all."""
    done = fit(config_of(tmp_path, "tagging", name=name, train={"epochs": 20, "lr": 3e-3}, **KINDS[name]))
    assert done.splits["test"].scores["accuracy"] > done.splits["test"].baseline["accuracy"] + 0.05


@pytest.mark.parametrize("name", ["ner", "ner-crf"])
def test_entities_are_scored_as_sets_and_predicted_in_strict_iob2(trained: Path, name: str) -> None:
    lines = predictions(trained, name)
    assert [line["words"] for line in lines] == [[word for word, _ in row] for row in tagged(20, 2)]
    assert [line["true"] for line in lines] == [[tag for _, tag in row] for row in tagged(20, 2)]

    def chunks(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """A plain reading of IOB2, letter by letter."""
        for begin, tag in enumerate(tags):
            if tag.startswith("B-"):
                end = begin + 1
                while end < len(tags) and tags[end] == f"I-{tag[2:]}":
                    end += 1
                yield begin, end, tag[2:]

    true, found = (
        {(number, *chunk) for number, line in enumerate(lines) for chunk in chunks(line[key])}
        for key in ("true", "tags")
    )
    scores = scores_of(trained, name)["scores"]
    assert scores["precision"] == pytest.approx(len(true & found) / len(found))
    assert scores["recall"] == pytest.approx(len(true & found) / len(true))
    assert scores["f1"] == pytest.approx(2 * len(true & found) / (len(true) + len(found)))
    for line in lines:
        assert not line["tags"][0].startswith("I-")
        assert all(not two.startswith("I-") or one[2:] == two[2:] for one, two in pairwise(line["tags"]))
        for entity in line["entities"]:
            assert line["text"][entity["start"] : entity["end"]] == entity["text"]
        assert [(e["text"], e["type"]) for e in line["entities"]] == [
            (" ".join(line["words"][begin:end]), kind) for begin, end, kind in chunks(line["tags"])
        ]


def test_scores_equal_worked_examples() -> None:
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "O"]]
    found = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O"]]
    scores, each = entity_scores(true, found)
    assert scores == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f1": 2 / 5, "accuracy": 4 / 6})
    assert each["PER"] == {"precision": 0, "recall": 0, "f1": 0, "count": 1}
    assert each["LOC"]["precision"] == 0.5
    # The end is wrong, or the type: no entity is right.
    assert entity_scores([["B-X", "I-X"]], [["B-X", "B-X"]]).scores["f1"] == 0
    assert entity_scores([["O"]], [["O"]]).scores["f1"] == 0
    from sklearn.metrics import f1_score

    draw = random.Random(0)
    one, other = ([draw.choice("ABCD") for _ in range(90)] for _ in range(2))
    mine = tag_scores([one[:40], one[40:]], [other[:40], other[40:]], ["A", "B", "C", "D", "E"])
    theirs = f1_score(one, other, labels=["A", "B", "C", "D", "E"], average="macro", zero_division=0)
    assert mine.scores["f1_macro"] == pytest.approx(theirs)


def test_the_baseline_is_the_most_frequent_tag_of_each_word(trained: Path) -> None:
    by_word: dict[str, list[str]] = {}
    for row in tagged(60, 0):
        for word, tag in row:
            by_word.setdefault(word, []).append(part_of_speech(tag))
    guess = {word: max(sorted(set(tags)), key=tags.count) for word, tags in by_word.items()}
    right = [guess[word] == part_of_speech(tag) for row in tagged(20, 2) for word, tag in row]
    assert scores_of(trained, "tagging")["baseline"]["accuracy"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize("name", ["ner-crf", "tagging"])
def test_a_stopped_run_goes_on_to_the_same_weights(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sections = KINDS[name] | {"runs_dir": str(tmp_path), "train": {"save_every": 3}}
    config = config_of(trained, name.removesuffix("-crf"), name=name, **sections)
    start = read_start(config, say=silent)

    class Killed(Exception):
        pass

    updates = FineTuning.updates

    def until(self: FineTuning, done: int):  # type: ignore[no-untyped-def]
        for step, batches in enumerate(updates(self, done), done):
            if step == 14:
                raise Killed
            yield batches

    monkeypatch.setattr(FineTuning, "updates", until)
    with pytest.raises(Killed):
        finetune(config, start, say=silent, progress=False)
    monkeypatch.setattr(FineTuning, "updates", updates)
    said: list[str] = []
    finetune(config, start, say=said.append, progress=False)
    assert any("going on from" in line and "update 12 of 24" in line for line in said)
    for place in ("best", "checkpoints/step-00000024"):
        one, other = (load_file(runs / name / place / "model.safetensors") for runs in (trained / "runs", tmp_path))
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", KINDS)
def test_commands_evaluate_and_predict(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    task, run = name.removesuffix("-crf"), str(trained / "runs" / name)
    before = (trained / "runs" / name / "eval.json").read_text("utf-8")
    assert command(["eval", run, "-q"]) == 0
    assert (trained / "runs" / name / "eval.json").read_text("utf-8") == before
    shown = capsys.readouterr().out
    assert "most frequent tag of each word" in shown
    assert ("PER" if task == "ner" else "  L  ") in shown
    ending = "conll" if task == "ner" else "conllu"
    file = trained / f"test.{ending}"
    assert command(["predict", task, "--file", str(file), "--model", run, "-q"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{k: v for k, v in line.items() if k != "true"} for line in predictions(trained, name)]
    assert command(["predict", "classification", "a", "--model", run]) == 2
    assert f"type: bertpt predict {task}" in capsys.readouterr().err


def test_texts_are_split_and_entities_are_slices_of_them(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decomposed accents, emoji, zero-width letters, an empty text and one of white space alone."""
    texts = ["p  x\u0301,p p!", "😀 q\u200b b", "", " \t", "日本 l x"]
    run = str(trained / "runs/ner")
    assert command(["predict", "ner", *texts, "--model", run, "-q"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in found] == texts
    assert [line["words"] for line in found] == [
        ["p", "x\u0301", ",", "p", "p", "!"], ["😀", "q\u200b", "b"], [], [], ["日", "本", "l", "x"],
    ]  # fmt: skip
    for line in found:
        assert len(line["tags"]) == len(line["words"])
        assert all(line["text"][e["start"] : e["end"]] == e["text"] for e in line["entities"])
    assert ("x\u0301", 3, 5) in [(e["text"], e["start"], e["end"]) for e in found[0]["entities"]]
    file = trained / "lines.txt"
    file.write_text("q a,r!\n", encoding="utf-8")
    assert command(["predict", "ner", "--file", str(file), "--split", "whitespace", "--model", run, "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == ["q", "a,r!"]
    words = trained / "words.jsonl"
    words.write_text(json.dumps({"tokens": ["q", "a b", "\u200b"]}) + "\n", encoding="utf-8")
    assert command(["predict", "ner", "--file", str(words), "--model", run, "-q"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["text"] == "q a b \u200b"
    assert len(line["tags"]) == 3


@pytest.mark.parametrize("name", ["ner", "tagging-crf"])
def test_long_sentences_get_the_tags_of_the_best_path_of_all_windows(trained: Path, name: str) -> None:
    predictor = TaskPredictor.open(trained / "runs" / name, name.removesuffix("-crf"))
    rows = [pair for row in tagged(200, 5) if ("p", "O") in row for pair in row][:600]
    words = [word for word, _ in rows]
    said: list[str] = []
    texts = [Text("one", " ".join(words)), Text("two", "a q b")]
    examples = split_texts(texts, predictor.tokenizer, punctuation=True)
    long, short = predictor.predict(examples, say=said.append)
    assert len(long["tags"]) == 600
    assert said == ["1 of 2 sentences read in windows of 32 tokens, as in training"]
    [alone] = predictor.predict(examples[1:], say=silent)
    assert alone == short
    # Each window as a sentence of its own, and of it what is said of the words that it owns.
    model, encoder_, parts = predictor.model, predictor.tokenizer, []
    assert isinstance(model, BertForTokenClassification)
    for begin, end, own_begin, own_end in windows([1] * 600, 30):
        row = encode_words(encoder_, [words[begin:end]], 32)
        with torch.no_grad():
            parts.append(model(row.batch(np.arange(1)))[own_begin - begin : own_end - begin])
    assert len(parts) > 20
    [expected] = decode(torch.cat(parts), np.array([600]), model.crf, predictor.facts)
    assert long["tags"] == [predictor.facts["labels"][tag] for tag in expected]


def test_windows_of_training_are_parts_of_one_chain(trained: Path) -> None:
    """The likelihood of inner rows has neither start nor end."""
    model, checkpoint = open_best(open_task_run(trained / "runs/tagging-crf"))
    model.eval()
    predictor = TaskPredictor.open(trained / "runs/tagging-crf", "tagging")
    rows = [(word, part_of_speech(tag)) for row in tagged(20, 7) for word, tag in row]
    [sentence] = split_texts([Text("x", " ".join(word for word, _ in rows))], predictor.tokenizer, punctuation=True)
    sentence = replace(sentence, tags=tuple(tag for _, tag in rows))
    encoded = predictor.task.encode([sentence], predictor.tokenizer, checkpoint.state, known=True)
    batch = encoded.batch(np.arange(len(encoded.rows)))
    terms = words_objective(model, batch)
    assert terms.losses["label"].count == len(rows)
    assert batch.token_counts is not None
    assert batch.token_labels is not None
    crf, expected = model.crf, 0.0
    parts = zip(
        model(batch).split(batch.token_counts.tolist()), batch.token_labels.split(batch.token_counts.tolist()),
        strict=True,
    )  # fmt: skip
    last = len(encoded.rows) - 1
    for number, (emissions, labels) in enumerate(parts):
        ends = torch.tensor([[number == 0, number == last]])
        expected -= crf(emissions, labels, torch.tensor([len(labels)]), ends).item()  # type: ignore[operator]
    assert terms.losses["label"].sum.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_transformers_loads_the_export_and_says_the_same(
    trained: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import pipeline

    said: list[str] = []
    done = export_task(trained / "runs" / name, tmp_path / "out", say=said.append)
    assert done.architecture == "BertForTokenClassification"
    assert done.difference == 0
    assert done.difference_transformers is not None
    assert done.difference_transformers < 1e-5
    assert any("(CRF) are left out" in line for line in said) == name.endswith("-crf")
    assert ("(CRF) are left out" in (tmp_path / "out/README.md").read_text("utf-8")) == name.endswith("-crf")
    config = json.loads((tmp_path / "out/config.json").read_text("utf-8"))
    run = open_task_run(trained / "runs" / name)
    assert list(config["id2label"].values()) == run.facts["labels"]
    assert not any(key.startswith("crf") for key in load_file(tmp_path / "out/model.safetensors"))
    words = [word for row in tagged(3, 9) for word, _ in row]
    theirs = pipeline("token-classification", model=str(tmp_path / "out"), device="cpu", ignore_labels=[])(
        " ".join(words)
    )
    assert len(theirs) == len(words)  # words of one letter: a piece each
    model, checkpoint = open_best(run)
    predictor = TaskPredictor.open(run.directory, run.config.task)
    [sentence] = split_texts([Text("x", " ".join(words))], predictor.tokenizer, punctuation=True)
    encoded = predictor.task.encode([sentence], predictor.tokenizer, checkpoint.state | {"max_length": 48}, known=False)
    with torch.no_grad():
        shares = model.eval()(encoded.batch(np.arange(1))).softmax(-1)
    assert [each["entity"] for each in theirs] == [run.facts["labels"][tag] for tag in shares.argmax(-1)]
    assert [float(each["score"]) for each in theirs] == pytest.approx(shares.max(-1).values.tolist(), abs=1e-5)


def test_loss_and_logits_equal_those_of_transformers(trained: Path) -> None:
    """The same weights in both; label -100 for what is no first piece."""
    import transformers

    from bertpt.interop.names import to_hf

    start = read_start(config_of(trained, "ner"), say=silent)
    model = BertForTokenClassification(start.model, len(start.tokens), 3, dropout=0.0).eval()
    config = transformers.BertConfig(
        vocab_size=len(start.tokens),
        num_labels=3,
        **start.model.model_dump(include=set(transformers.BertConfig().to_dict())),
    )
    other = transformers.BertForTokenClassification(config).eval()
    other.load_state_dict(to_hf(model.state_dict(), len(start.tokens)), strict=True)
    ids, mask = torch.tensor([[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels = torch.tensor([[-100, 2, -100, 0, -100], [-100, 1, -100, -100, -100]])
    theirs = other(ids, mask, torch.zeros_like(ids), labels=labels)
    batch = Batch.from_padded(
        ids, mask, torch.zeros_like(ids), token_positions=torch.tensor([1, 3, 6]), token_counts=torch.tensor([2, 1]),
        token_labels=torch.tensor([2, 0, 1]), row_labels=torch.ones(2, 2, dtype=torch.bool),
    )  # fmt: skip
    terms = words_objective(model, batch)
    assert torch.allclose(model(batch), theirs.logits[labels != -100], atol=1e-6)
    assert terms.losses["label"].sum.item() / 3 == pytest.approx(theirs.loss.item(), abs=1e-6)


def test_inspect_shows_tags_repeats_and_lengths(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from train_helpers import write_config

    from bertpt.config import plain

    path = write_config(trained / "c.yaml", plain(config_of(trained, "ner")))
    assert command(["inspect", "task", "--config", str(path), "--json", "-q"]) == 0
    report = json.loads(capsys.readouterr().out)["splits"]
    assert report["train"]["counts"]["documents"] == 1
    true = [tag for row in tagged(60, 0) for _, tag in row]
    assert report["train"]["labels"] == {tag: true.count(tag) for tag in ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]}
    train = {tuple(word for word, _ in row) for row in tagged(60, 0)}
    assert report["dev"]["in_train"] == sum(tuple(word for word, _ in row) in train for row in tagged(20, 1))


def test_only_predictions_of_iob2_are_possible_whatever_the_weights() -> None:
    facts = {"labels": ["B-X", "B-Y", "I-X", "I-Y", "O"], "entities": True}
    emissions = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    first, follows = legal(facts["labels"])  # type: ignore[arg-type]
    found = decode(emissions, np.array([120, 0, 79, 1]), None, facts)
    assert [len(tags) for tags in found] == [120, 0, 79, 1]
    for tags in found:
        assert not len(tags) or first[tags[0]]
        assert all(follows[one, other] for one, other in pairwise(tags))

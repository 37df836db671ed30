"""Extractive summarization: sentences, oracles, windows, ROUGE; a generated data set from training to export."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from task_helpers import encoder, fit, silent
from train_helpers import merged

from bertpt.cli.main import run as command
from bertpt.config import FinetuneConfig, validate_finetune
from bertpt.errors import RequestError
from bertpt.interop.export_task import export_task
from bertpt.interop.finetuning import read_start
from bertpt.tasks.evaluation import evaluate_task_run, open_best
from bertpt.tasks.examples import read_splits
from bertpt.tasks.finetune import finetune
from bertpt.tasks.inspect import inspect_task
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.summarization.article_windows import encode_articles, windows
from bertpt.tasks.summarization.articles import Article, read_articles, sentence_spans
from bertpt.tasks.summarization.oracle import greedy, oracle, verbatim
from bertpt.tasks.summarization.rouge import common_length, rouge, words
from bertpt.tasks.summarization.summarization import choose, sentence_loss, summary_size
from bertpt.tasks.work import FineTuning

TASK = TASKS["summarization"]


# --- a generated data set -------------------------------------------------------------------------------------------


def story(draw: random.Random, sentences: int) -> dict[str, Any]:
    """Sentences of letters; those with many of a letter are the summary, written without a space between them."""
    lines, chosen = [], []
    for number in range(sentences):
        told = number % 3 == 1
        body = [draw.choice("uvwxyz") for _ in range(draw.randint(3, 6))] + (["a"] * 4 if told else ["b"] * 4)
        draw.shuffle(body)
        lines.append("The " + " ".join(body) + f" {draw.randint(100, 999)}.")
        if told:
            chosen.append(lines[-1])
    return {
        "article": "\n\n".join(" ".join(lines[at : at + 3]) for at in range(0, sentences, 3)),
        "summary": "".join(chosen),
    }


def stories(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [story(draw, draw.randint(4, 9)) for _ in range(count)]


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def configuration(folder: Path, **sections: Any) -> FinetuneConfig:
    encoder(folder)
    for split, count, seed in (("train", 40, 0), ("dev", 16, 1), ("test", 16, 2)):
        if not (folder / f"{split}.jsonl").is_file():
            write_rows(folder / f"{split}.jsonl", stories(count, seed))
    value: dict[str, Any] = {
        "name": "t",
        "runs_dir": str(folder / "runs"),
        "task": "summarization",
        "from": str(folder / "encoder-BertForPreTraining"),
        "data": {split: str(folder / f"{split}.jsonl") for split in ("train", "dev", "test")},
        "train": {"epochs": 4, "batch_size": 8, "lr": 5e-3, "max_length": 32, "device": "cpu", "log_every": 1},
    }
    return validate_finetune(merged(value, sections))


def read(folder: Path, rows: Sequence[Any], **data: Any) -> Any:
    config = configuration(folder, data=data)
    return read_articles(str(write_rows(folder / "given.jsonl", rows)), config)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run ``t``, whose articles are longer than a row."""
    folder = tmp_path_factory.mktemp("summaries")
    fit(configuration(folder))
    return folder


def predictions(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"runs/t/predictions-{split}.jsonl").read_text("utf-8").splitlines()]


def test_it_learns_and_stands_beside_lead_k_and_the_oracle(trained: Path) -> None:
    splits = json.loads((trained / "runs/t/eval.json").read_text("utf-8"))["splits"]
    for split in ("dev", "test"):
        scores, baseline, best = (splits[split][name] for name in ("scores", "baseline", "oracle"))
        assert scores["rouge2"] > baseline["rouge2"] + 0.2
        assert best["rouge2"] > 0.99 >= scores["rouge2"] - 0.01
        assert scores.keys() - baseline.keys() == {"loss"}
        assert splits[split]["mean_sentences"]["summary"] == splits[split]["mean_sentences"]["lead"]


def test_predictions_are_sentences_of_the_article_in_its_order(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "test.jsonl").read_text("utf-8").splitlines()]
    for number, (line, row) in enumerate(zip(predictions(trained, "test"), rows, strict=True), 1):
        assert line["place"] == f"{trained / 'test.jsonl'}:{number}"
        assert len(line["scores"]) == row["article"].count(".")
        assert [each["number"] for each in line["summary"]] == sorted({each["number"] for each in line["summary"]})
        for each in line["summary"]:
            assert row["article"][each["begin"] : each["end"]] == each["text"]
            assert row["article"].split(".")[each["number"]].strip() + "." == each["text"]
            assert each["score"] == line["scores"][each["number"]]
        assert line["true"] == [n for n in range(len(line["scores"])) if n % 3 == 1]
        best = sorted(range(len(line["scores"])), key=lambda n: -line["scores"][n])[: len(line["summary"])]
        assert {each["number"] for each in line["summary"]} == set(best)


def test_evaluating_again_gives_the_same(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((trained / "runs/t/eval.json").read_text("utf-8"))
    assert command(["eval", str(trained / "runs/t"), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == before
    assert command(["eval", str(trained / "runs/t")]) == 0
    shown = capsys.readouterr().out
    assert "baseline: lead-k" in shown
    assert "the labelled sentences themselves: rouge1" in shown


def test_a_killed_run_goes_on_to_the_same_weights(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(trained, name="killed", train={"save_every": 3})
    start = read_start(config, say=silent)

    class Killed(Exception):
        pass

    updates = FineTuning.updates

    def until(self: FineTuning, done: int):  # type: ignore[no-untyped-def]
        for step, batches in enumerate(updates(self, done), done):
            if step == 11:
                raise Killed
            yield batches

    with monkeypatch.context() as patched:
        patched.setattr(FineTuning, "updates", until)
        with pytest.raises(Killed):
            finetune(config, start, say=silent, progress=False)
    said: list[str] = []
    finetune(config, start, say=said.append, progress=False)
    assert any("going on from" in line and "update 9 of" in line for line in said)
    one, other = (load_file(trained / "runs" / name / "best/model.safetensors") for name in ("t", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_predict_reads_a_file_as_one_article_and_json_lines_as_many(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in (trained / "test.jsonl").read_text("utf-8").splitlines()][:3]
    text = rows[0]["article"]
    (tmp_path / "one.txt").write_text(text + "\n", encoding="utf-8")
    write_rows(tmp_path / "many.jsonl", [{"article": row["article"]} for row in rows])
    place = str(trained / "runs/t")

    def say(*arguments: str) -> list[dict[str, Any]]:
        assert command(["predict", "summarization", *arguments, "--model", place, "--quiet"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    saved = [{**line, "place": ""} for line in predictions(trained, "test")]
    for line in saved:
        del line["true"]
    [one] = say("--file", str(tmp_path / "one.txt"))
    assert one["place"] == str(tmp_path / "one.txt")
    many = say("--file", str(tmp_path / "many.jsonl"))
    assert [line["place"] for line in many] == [f"{tmp_path / 'many.jsonl'}:{number}" for number in (1, 2, 3)]
    [argument] = say(text)
    [short] = say(text, "--k", "1")
    assert [each["number"] for each in short["summary"]] == [int(np.argmax(one["scores"]))]
    for found, kept in zip([one, *many, argument], [saved[0], *saved[:3], saved[0]], strict=True):
        assert [each["text"] for each in found["summary"]] == [each["text"] for each in kept["summary"]]
        assert found["scores"] == pytest.approx(kept["scores"], abs=1e-5)
    assert say("", "  \n ") == [{"place": f"argument {n}", "summary": [], "scores": []} for n in (1, 2)]
    (tmp_path / "bad.jsonl").write_text('{"article": "A b."}\n{"text": "A b."}\n', encoding="utf-8")
    assert command(["predict", "summarization", "--file", str(tmp_path / "bad.jsonl"), "--model", place]) == 2
    assert "bad.jsonl:2: no 'article'; there: text" in capsys.readouterr().err


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_export_scores_like_ours_in_transformers(trained: Path, tmp_path: Path, pooling: str) -> None:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    if pooling == "cls":
        trained = tmp_path
        fit(configuration(trained, head={"pooling": "cls"}, train={"epochs": 1}))
    out = tmp_path / "out"
    done = export_task(trained / "runs/t", out, say=silent)
    assert done.difference_transformers is not None
    assert done.difference_transformers < 1e-5
    theirs = AutoModelForTokenClassification.from_pretrained(out, local_files_only=True).eval()
    assert (theirs.config.num_labels, type(theirs).__name__) == (1, "BertForTokenClassification")
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    model, checkpoint = open_best_of(trained)
    sentences = ["The a b c 1.", "Them a a.", "Z z z."]
    text = "\n".join(sentences)
    article = Article("here", text, sentence_spans(text, language="en", mode="lines", headline=False))
    own = tokenizer_of(trained)
    encoded = TASK.encode([article], own, checkpoint | {"max_length": 64}, known=False)
    [ours] = TASK.predict(model, encoded, checkpoint)
    # As the card of the export says.
    rows = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    ids = torch.tensor([[token for row in rows for token in row]])
    types = torch.tensor([[number % 2 for number, row in enumerate(rows) for _ in row]])
    with torch.inference_mode():
        logits = theirs(input_ids=ids, token_type_ids=types).logits[0, :, 0]
    card = (out / "README.md").read_text("utf-8").replace("`", "")
    if pooling == "mean":
        found = [part.mean().item() for part in logits.split([len(row) for row in rows])]
        assert "the score of a sentence is the mean of the logits of its tokens" in card
        assert "part.mean()" in card
    else:
        found = logits[ids[0] == tokenizer.cls_token_id].tolist()
        assert "the one logit at each [CLS] is the score of its sentence" in card
    assert found == pytest.approx(ours.tolist(), abs=1e-5)


def test_a_score_is_the_mean_over_the_tokens_of_its_own_sentence(trained: Path) -> None:
    model, facts = open_best_of(trained)
    assert model.mean
    tokenizer = tokenizer_of(trained)
    [long, short] = read(
        trained,
        [
            {"article": "\n\n".join(f"A b{n} c d e now." for n in range(12)), "summary": "A b3 c d e now."},
            {"article": "B a now.\n\nC d e.", "summary": "B a now."},
        ],
    ).rows
    encoded = TASK.encode([long, short], tokenizer, facts, known=False)
    rows = np.arange(len(encoded.rows))
    assert len(rows) > 2, "windows that overlap, and another article behind them"
    batch = encoded.batch(rows)
    assert batch.token_positions is not None
    with torch.inference_mode():
        found = model.eval()(batch).tolist()
        each = model(dataclasses.replace(batch, token_positions=None)).tolist()
    ids, expected = batch.input_ids.tolist(), []
    for place in batch.token_positions.tolist():
        end = next(at for at in range(place, len(ids)) if ids[at] == tokenizer.sep_id)
        expected.append(np.mean(each[place : end + 1]))
    assert len(set(np.round(expected, 6))) > 3
    assert found == pytest.approx(expected, abs=1e-5)


def open_best_of(folder: Path) -> tuple[Any, Any]:
    from bertpt.tasks.rundir import open_task_run

    model, checkpoint = open_best(open_task_run(folder / "runs/t"))
    return model, checkpoint.state


def tokenizer_of(folder: Path) -> Any:
    from bertpt.data.tokenizer.wordpiece import load_tokenizer

    return load_tokenizer(folder / "runs/t/tokenizer")


# --- ROUGE ----------------------------------------------------------------------------------------------------------


def test_rouge_of_worked_examples() -> None:
    # Lin 2004, section 3: "police killed the gunman" against "police kill the gunman" has the subsequence
    # "police the gunman", 3 of 4 words; "the gunman kill police" has 2 of 4, and the same bigrams as neither order.
    reference = words("police killed the gunman")
    assert rouge(words("police kill the gunman"), reference)["rougeL"] == 0.75
    assert rouge(words("the gunman kill police"), reference)["rougeL"] == 0.5
    # Counts are clipped: "the" stands twice in the reference.
    scores = rouge(words("the the the cat"), words("The cat sat on the mat."))
    assert scores["rouge1"] == pytest.approx(2 * 3 / (4 + 6))
    assert scores["rouge2"] == pytest.approx(2 * 1 / (3 + 5))
    assert rouge([], words("a b")) == rouge(words("a b"), []) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    assert rouge(words("one"), words("one")) == {"rouge1": 1.0, "rouge2": 0.0, "rougeL": 1.0}


def test_rouge_equals_what_rouge_score_prints() -> None:
    # rouge-score 0.1.2, RougeScorer(["rouge1", "rouge2", "rougeL"]), F-measures.
    found = rouge(
        words("U.S. sales rose 2% to $11.1bn, it's said; profits didn't."),
        words("It said that sales in the U.S. rose to $11.1bn -- from $10.9bn; profit fell 2%."),
    )
    assert [round(found[name], 6) for name in ("rouge1", "rouge2", "rougeL")] == ROUGE_SCORE


ROUGE_SCORE = [0.625, 0.2, 0.375]


def test_words_of_other_scripts_count() -> None:
    assert words("Привет, МИР! नमस्ते 猫と犬 cafe\u0301 don't") == [
        "привет",
        "мир",
        "नमस्ते",
        "猫",
        "と",
        "犬",
        "café",
        "don",
        "t",
    ]


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=7))
@settings(deadline=None)
def test_the_longest_common_subsequence_is_that_of_brute_force(one: list[str], other: list[str]) -> None:
    parts = {tuple(part) for size in range(len(one) + 1) for part in itertools.combinations(one, size)}
    longest = max(
        size for size in range(len(other) + 1) for part in itertools.combinations(other, size) if part in parts
    )
    assert common_length(one, other) == longest


# --- oracles --------------------------------------------------------------------------------------------------------


def test_sentences_joined_without_a_space_are_found() -> None:
    sentences = ["It rained.", "The cat sat on the mat.", "It rained.", "It rained. So what?", "All is well."]
    assert verbatim(sentences, "All is well.The cat sat on the mat.") == [1, 4]
    assert verbatim(sentences, "It rained. So what?") == [3]  # the longest first: the short ones stand inside it
    assert verbatim(sentences, "The cat\n sat on the mat. It rained.") == [0, 1]
    assert verbatim(sentences, "A cat was sitting there in the rain.") is None
    assert verbatim(sentences, " ") is None
    # Half of a sentence, where two programs disagree on an end, counts for it; a single word does not.
    assert verbatim(
        [*sentences, "Mr. Smith said that it will be over soon."], "Smith said that it will be over soon."
    ) == [5]
    assert oracle(sentences, "The cat sat. Rain fell.", None)[1] is False
    assert oracle(sentences, "All is well.", None) == ([4], True)


def slow_greedy(sentences: Sequence[Sequence[str]], reference: Sequence[str], limit: int) -> list[int]:
    """The definition, computed anew for each candidate."""

    def value(numbers: Sequence[int]) -> float:
        total = 0.0
        for n in (1, 2):
            grams = Counter(
                tuple(sentences[i][at : at + n]) for i in numbers for at in range(len(sentences[i]) - n + 1)
            )
            theirs = Counter(tuple(reference[at : at + n]) for at in range(len(reference) - n + 1))
            common = sum(min(count, theirs[gram]) for gram, count in grams.items())
            if common:
                precision, recall = common / sum(grams.values()), common / sum(theirs.values())
                total += 2 * precision * recall / (precision + recall)
        return total

    picked: list[int] = []
    while len(picked) < limit:
        rest = [number for number in range(len(sentences)) if number not in picked]
        best = max(rest, key=lambda number: round(value([*picked, number]), 9), default=None)
        if best is None or value([*picked, best]) <= value(picked) + 1e-9:
            break
        picked.append(best)
    return sorted(picked)


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=4), max_size=5),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=8),
    st.integers(1, 5),
)
@settings(deadline=None)
def test_the_greedy_selection_is_that_of_its_definition(
    sentences: list[list[str]], reference: list[str], limit: int
) -> None:
    assert greedy(sentences, reference, limit) == slow_greedy(sentences, reference, limit)


# --- sentences and windows ------------------------------------------------------------------------------------------


def spans_of(text: str, **changes: Any) -> list[str]:
    options: dict[str, Any] = {"language": "en", "mode": "split", "headline": False} | changes
    return [text[begin:end] for begin, end in sentence_spans(text, **options)]


def test_paragraphs_end_at_blank_lines_or_else_at_line_ends() -> None:
    assert spans_of("Head\nOne two. Three.\nFour.\n") == ["Head", "One two.", "Three.", "Four."]
    assert spans_of("Head\n \nOne two\nthree. Four\r\nfive.\n\n") == ["Head", "One two\nthree.", "Four\r\nfive."]
    assert spans_of("\n\nHead\n\nOne two. Three.", headline=True) == ["One two.", "Three."]
    assert spans_of("Head only. Two.", headline=True) == ["Head only.", "Two."]
    assert spans_of("a. b\n\n c. d ", mode="lines") == ["a. b", "c. d"]
    assert spans_of(" \n\t\n") == spans_of("") == []
    assert spans_of("今日は雨。明日は晴れ。", language="ja") == ["今日は雨。", "明日は晴れ。"]


@given(st.text(alphabet="ab.?! \n\r\t\u2028\u00e9\u0301\U0001f600\u3002\"'", max_size=60), st.booleans())
@settings(deadline=None)
def test_spans_are_in_order_and_nothing_but_white_space_is_between(text: str, headline: bool) -> None:
    at = 0
    for begin, end in sentence_spans(text, language="en", mode="split", headline=False):
        assert not text[at:begin].strip("\ufeff").strip()
        assert text[begin:end].strip() == text[begin:end] != ""
        at = end
    assert not text[at:].strip()
    rest = sentence_spans(text, language="en", mode="split", headline=True)
    assert list(rest) == sorted(rest)


@given(st.lists(st.integers(2, 20), max_size=30), st.integers(20, 60))
@settings(deadline=None)
def test_each_sentence_is_scored_once_where_it_has_most_context(sizes: list[int], room: int) -> None:
    found = windows(sizes, room)
    scored = [index for window in found for index in range(window.first, window.last)]
    assert scored == list(range(len(sizes)))
    for window in found:
        assert sum(sizes[window.begin : window.end]) <= room
        assert window.begin <= window.first < window.last <= window.end
    if sum(sizes) <= room and sizes:
        assert len(found) == 1

    def context(index: int, window: Any) -> int:
        return min(sum(sizes[window.begin : index]), sum(sizes[index + 1 : window.end]))

    for window in found:
        for index in range(window.first, window.last):
            others = [context(index, other) for other in found if other.begin <= index < other.end]
            assert context(index, window) == max(others)


def test_long_documents_are_read_to_their_end(trained: Path) -> None:
    tokenizer = tokenizer_of(trained)
    sizes = [1, 2, 80, 50, 3] * 30
    text = "\n".join(" ".join(["u"] * size) for size in sizes)
    article = Article("here", text, sentence_spans(text, language="en", mode="lines", headline=False), "", (1, 149))
    encoded = encode_articles([article], tokenizer, max_length=64, segments=2, known=True)
    assert encoded.mark_labels is not None
    batch = encoded.batch(np.arange(len(encoded.rows)))
    assert batch.token_positions is not None
    # N12: as many labels as scored [CLS], and every marked token is a [CLS] after a [SEP] or at the front of its row.
    assert len(batch.token_positions) == len(encoded.mark_labels) == 150
    assert encoded.mark_labels.nonzero().flatten().tolist() == [1, 149]
    assert (batch.input_ids[batch.token_positions] == tokenizer.cls_id).all()
    for row in range(len(encoded.rows)):
        ids = encoded.rows.ids[encoded.rows.offsets[row] : encoded.rows.offsets[row + 1]]
        types = encoded.rows.types[encoded.rows.offsets[row] : encoded.rows.offsets[row + 1]]
        assert len(ids) <= 64
        assert ids[0] == tokenizer.cls_id
        assert ids[-1] == tokenizer.sep_id
        starts = np.flatnonzero(ids == tokenizer.cls_id)
        assert (ids[starts[1:] - 1] == tokenizer.sep_id).all()
        assert (types == (np.cumsum(ids == tokenizer.cls_id) - 1) % 2).all()
    assert encoded.cut == 1
    assert encoded.cut_sentences == 30
    assert "30 sentences cut" in TASK.fit(encoded, {"max_length": 64})


def test_an_encoder_of_one_segment_gets_one(trained: Path) -> None:
    text = "a b.\nc d."
    article = Article("here", text, ((0, 4), (5, 9)))
    assert not encode_articles(
        [article], tokenizer_of(trained), max_length=32, segments=1, known=False
    ).rows.types.any()


def test_the_loss_is_summed_over_sentences(trained: Path) -> None:
    model, facts = open_best_of(trained)
    splits = read_splits(TASK, configuration(trained))
    encoded = TASK.encode(splits.examples["dev"], tokenizer_of(trained), facts, known=True)
    rows = np.arange(len(encoded.rows))
    with torch.inference_mode():
        whole = sentence_loss(model.eval(), encoded.batch(rows)).losses["label"]
        halves = [sentence_loss(model, encoded.batch(part)).losses["label"] for part in np.array_split(rows, 3)]
    assert whole.count == sum(half.count for half in halves) == sum(len(a.spans) for a in splits.examples["dev"])
    assert float(whole.sum) == pytest.approx(sum(float(half.sum) for half in halves), rel=1e-5)
    logits = np.concatenate(TASK.predict(model, encoded, facts))
    labels = np.concatenate([[n in a.labels for n in range(len(a.spans))] for a in splits.examples["dev"]])
    by_hand = np.log1p(np.exp(-np.where(labels, logits, -logits).astype(float))).sum()
    assert float(whole.sum) == pytest.approx(by_hand, rel=1e-4)


# --- choosing -------------------------------------------------------------------------------------------------------


def test_k_sentences_in_order_and_trigrams_are_not_repeated() -> None:
    text = "One two three four. Zero one two three. Five six. Seven."
    article = Article("here", text, sentence_spans(text, language="en", mode="split", headline=False))
    logits = np.array([3.0, 2.0, 1.0, 2.0], np.float32)
    facts = {"k": 3, "share": None, "trigram_blocking": False}
    assert choose(article, logits, facts) == [0, 1, 3]
    assert choose(article, logits, facts | {"trigram_blocking": True}) == [0, 2, 3]
    assert choose(article, logits, facts | {"k": 9}) == [0, 1, 2, 3]
    assert choose(article, logits, facts | {"k": None, "share": 0.4}) == [0, 1]  # 1 and 3 are equal: the first
    assert [summary_size(Article("", "", ((0, 1),) * n), facts | {"share": 0.4}) for n in (1, 2, 5)] == [1, 1, 2]
    single = Article("here", "Only.", ((0, 5),))  # N12: one sentence is its own summary, whatever k is
    assert choose(single, np.array([-9.0], np.float32), facts) == [0]


def test_auto_lengths_are_those_of_the_labels(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    splits = read_splits(TASK, config)
    rows = splits.examples["train"]
    mean = np.mean([len(article.labels) for article in rows])
    assert splits.facts["k"] == round(mean)
    shared = TASK.facts(configuration(tmp_path, summary={"share": "auto"}), rows)
    assert shared["k"] is None
    assert shared["share"] == pytest.approx(mean / np.mean([len(article.spans) for article in rows]), abs=1e-4)
    assert TASK.facts(configuration(tmp_path, summary={"k": 7}), rows)["k"] == 7


# --- files ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_used_is_counted_or_named(tmp_path: Path) -> None:
    good = {"article": "One two. Three four.", "summary": "One two."}
    found = read(
        tmp_path, [good, {"article": " ", "summary": "x"}, {"article": "A b.", "summary": " "}, {"summary": "x"}]
    )
    assert [row.labels for row in found.rows] == [(0,)]
    assert (found.counts["empty"], found.counts["no_summary"]) == (1, 1)
    assert len(found.faults) == 1
    assert re.search(r"given\.jsonl:4: no 'article'", found.faults[0])
    data = {"labels": "is", "sentences": "lines", "summary": None}
    rows = [
        {"article": ["One\ntwo.", "Three."], "is": [0, 1]},
        {"article": "One.\nTwo.", "is": "1 0"},
        {"article": ["One.", "Two."], "is": [True, False]},
        {"article": ["One.", "Two."], "is": [1]},
        {"article": ["One.", "Two."], "is": [1, 2]},
        {"article": ["One.", ["Two."]], "is": [1, 2]},
    ]
    found = read(tmp_path, rows, **data)
    assert [(row.sentences, row.labels, row.summary) for row in found.rows] == [
        (["One two.", "Three."], (1,), "Three."),
        (["One.", "Two."], (0,), "One."),
        (["One.", "Two."], (0,), "One."),
    ]
    assert [fault.rpartition("given.jsonl")[2] for fault in found.faults[:3]] == [
        ":6: article: text or a number is expected, not ['One.', ['Two.']]",
        ":4: 1 labels, but 2 sentences",
        ":5: labels: 0 or 1 is expected for each sentence, not '2'",
    ]


def test_files_of_every_kind_give_the_same_articles(tmp_path: Path) -> None:
    rows = stories(5)
    config = configuration(tmp_path)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    cells = [[row["article"], row["summary"]] for row in rows]
    text = "article,summary\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in cells)
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    found = [
        [(row.text, row.spans, row.labels) for row in read_articles(str(tmp_path / name), config).rows]  # type: ignore[arg-type]
        for name in ("a.jsonl.gz", "a.parquet", "a.csv")
    ]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 5


def test_copies_leave_train_and_one_file_is_parted_by_text(tmp_path: Path) -> None:
    rows = stories(60, 5)
    spaced = {**rows[1], "article": rows[1]["article"].replace(" ", "  ")}
    write_rows(tmp_path / "train.jsonl", [*rows[:20], rows[0], spaced, *rows[30:33]])
    write_rows(tmp_path / "dev.jsonl", [*rows[30:40], rows[30]])
    config = configuration(tmp_path)
    splits = read_splits(TASK, config)
    assert [article.text for article in splits.examples["train"]] == [row["article"] for row in rows[:20]]
    assert splits.counts["train"] == {"repeated": 2, "heldout": 3, "verbatim": 20}
    assert splits.counts["dev"] == {"repeated": 1, "verbatim": 10}
    report = inspect_task(config, read_start(config, say=silent).open_tokenizer())
    assert report.splits["train"].notes[0] == f"{tmp_path}/train.jsonl:21 = {tmp_path}/train.jsonl:1"
    shown = report.table()
    assert "3 articles that stand in dev or test, left out of train" in shown
    assert "20 summaries found in the article" in shown
    assert "median" in shown

    everything = write_rows(tmp_path / "all.jsonl", [*rows, *rows[::2], spaced])
    parted = configuration(
        tmp_path, data={"train": str(everything), "dev": "", "test": None, "shares": {"dev": 0.3, "test": 0.2}}
    )
    first = read_splits(TASK, parted)
    sides = {split: {article.key for article in examples} for split, examples in first.examples.items()}
    assert sum(map(len, first.examples.values())) == len(set.union(*sides.values())) == 60
    assert 8 <= len(sides["dev"]) <= 28
    assert 4 <= len(sides["test"]) <= 22
    assert sum(counts["repeated"] for counts in first.counts.values()) == 31
    # Another order, and fewer articles: each stays on its side.
    write_rows(everything, rows[40::-1])
    again = read_splits(TASK, parted)
    for split, examples in again.examples.items():
        assert {article.key for article in examples} <= sides[split]


def test_one_file_trains_and_is_evaluated_on_its_parts(tmp_path: Path) -> None:
    everything = write_rows(tmp_path / "all.jsonl", stories(40, 6))
    config = configuration(
        tmp_path, data={"train": str(everything), "dev": "", "test": None, "shares": {"dev": 0.2, "test": 0.2}},
        train={"epochs": 1},
    )  # fmt: skip
    evaluation = fit(config)
    assert evaluation.splits.keys() == {"dev", "test"}
    again = evaluate_task_run(tmp_path / "runs/t", say=silent)
    assert again.as_dict() == evaluation.as_dict()
    places = [
        json.loads(line)["place"]
        for s in ("dev", "test")
        for line in (tmp_path / f"runs/t/predictions-{s}.jsonl").read_text("utf-8").splitlines()
    ]
    assert len(set(places)) == len(places) == sum(split.rows for split in evaluation.splits.values())


def test_other_labels_than_a_summary_need_not_be_found(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [{"article": "One two.", "summary": "x y"}] * 3)
    with pytest.raises(RequestError, match="no sentence of any article is part of its summary"):
        read_splits(TASK, configuration(tmp_path))


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"data": {"dev": ""}}, "data.dev: is required; or data.shares"),
        ({"data": {"shares": {"dev": 0.1}}}, "data.shares: dev and test are parts of data.train"),
        ({"data": {"dev": "", "test": None, "shares": {"dev": 0.6, "test": 0.4}}}, "data.shares: nothing is left"),
        ({"data": {"labels": "x"}}, "data.labels: need data.sentences=lines"),
        ({"data": {"summary": None}}, "data.summary: is required; or data.labels"),
        ({"data": {"format": "fasttext"}}, "data.format: fasttext files hold no summaries"),
        ({"data": {"language": "klingon"}}, "data.language: no language has the code"),
        ({"summary": {"k": 3, "share": 0.5}}, "summary.k, summary.share: both are set"),
        ({"summary": {"k": 0}}, "summary.k"),
        ({"train": {"metric": "f1"}}, "train.metric"),
        ({"data": {"text": "x"}}, "data.text"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, sections: dict[str, Any], line: str) -> None:
    with pytest.raises(RequestError) as caught:
        configuration(tmp_path, **sections)
    assert line in str(caught.value)

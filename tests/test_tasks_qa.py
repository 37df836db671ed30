"""Question answering: the loss, the choice of answers and the scores against other definitions; files to answers."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_helpers import TOKENS
from qa_helpers import lettered, qa, qa_config, write_squad
from safetensors.torch import load_file
from task_helpers import fit, silent
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.cli.main import run as command
from bertpt.data.tokenizer.wordpiece import Normalising, WordPieceTokenizer, build
from bertpt.interop.export_task import export_task
from bertpt.interop.finetuning import read_start
from bertpt.interop.names import to_hf
from bertpt.model.answering import BertForQuestionAnswering, row_grid, span_loss
from bertpt.tasks.finetune import finetune
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.qa.question_windows import encode_questions
from bertpt.tasks.qa.questions import Question
from bertpt.tasks.qa.spans import Window, best_spans, decide
from bertpt.tasks.qa.squad_scores import best_scores, best_threshold, exact_match, f1, normalized
from bertpt.tasks.work import FineTuning

# --- loss -----------------------------------------------------------------------------------------------------


def test_loss_and_logits_equal_those_of_transformers(tmp_path: Path) -> None:
    """The same weights in both. Theirs takes padding into the softmax, so each row is compared without any."""
    import transformers

    start = read_start(qa_config(tmp_path), say=silent)
    model = BertForQuestionAnswering(start.model, len(start.tokens)).eval()
    config = transformers.BertConfig(
        vocab_size=len(start.tokens), **start.model.model_dump(include=set(transformers.BertConfig().to_dict()))
    )
    other = transformers.BertForQuestionAnswering(config).eval()
    other.load_state_dict(to_hf(model.state_dict(), len(start.tokens)), strict=True)
    ids = torch.tensor([[2, 7, 3, 8, 9, 3], [2, 10, 3, 9, 3, 0]])
    mask, types = ids != 0, torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0]])
    labels = torch.tensor([[3, 4], [0, 0]])
    loss, right = span_loss(logits := model(batch := Batch.from_padded(ids, mask, types, row_labels=labels)), batch)
    expected = []
    for row, length in enumerate((6, 5)):
        part = (ids[row : row + 1, :length], mask[row : row + 1, :length], types[row : row + 1, :length])
        one = other(*part, start_positions=labels[row : row + 1, 0], end_positions=labels[row : row + 1, 1])
        found = logits[row * 6 : row * 6 + length]
        assert torch.allclose(found, torch.stack([one.start_logits[0], one.end_logits[0]], -1), atol=1e-6)
        expected.append(one.loss.item())
    assert loss.item() == pytest.approx(sum(expected), abs=1e-5)
    grid = row_grid(logits, batch)
    assert torch.isinf(grid[1, :, 5]).all()
    assert right.item() == (grid.argmax(-1) == labels).all(-1).sum().item()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# --- the choice of answers ------------------------------------------------------------------------------------


def drawn_windows(seed: int) -> tuple[list[Window], int]:
    """Windows that overlap, with logits of which some are equal."""
    draw = np.random.default_rng(seed)
    tokens, room = int(draw.integers(1, 30)), int(draw.integers(1, 12))
    stride = int(draw.integers(1, room + 1))
    begins = [0]
    while begins[-1] + room < tokens:
        begins.append(begins[-1] + stride)
    windows = []
    for begin in begins:
        size = min(room, tokens - begin)
        starts, ends = draw.normal(size=(2, size)).round(1).astype(np.float32)
        windows.append(Window(begin, starts, ends, float(draw.normal())))
    return windows, tokens


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 9))
def test_the_best_spans_are_those_of_trying_all(seed: int, longest: int, n_best: int) -> None:
    windows, tokens = drawn_windows(seed)

    def context(window: Window, token: int) -> float:
        last = window.begin + len(window.starts) - 1
        if not window.begin <= token <= last:
            return -1.0
        return min(token - window.begin, last - token) + 0.01 * len(window.starts)

    every = []
    for first, last in itertools.product(range(tokens), repeat=2):
        window = max(windows, key=lambda one: context(one, first))
        if first <= last < first + longest and context(window, last) >= 0:
            every.append((float(window.starts[first - window.begin] + window.ends[last - window.begin]), first, last))
    found = best_spans(windows, tokens, longest, n_best)
    assert set(found) <= set(every)
    assert [score for score, _, _ in found] == sorted((score for score, _, _ in every), reverse=True)[:n_best]


def decided(windows: Sequence[Window], context: str, offsets: Any, **changes: Any) -> Any:
    settings = {"max_answer_length": 5, "n_best": 20, "version_2": True, "threshold": 0.0} | changes
    return decide(windows, context, np.array(offsets, np.int64).reshape(-1, 2), **settings)


def one_window(starts: list[float], ends: list[float], null: float, begin: int = 0) -> Window:
    return Window(begin, np.array(starts, np.float32), np.array(ends, np.float32), null)


def test_no_answer_is_given_when_its_least_score_lies_above_the_best_one_by_more_than_the_threshold() -> None:
    offsets = [[0, 1], [2, 3]]
    windows = [one_window([1.0, 0.0], [0.0, 0.5], 9.0), one_window([0.0], [0.5], 2.0, begin=1)]
    found = decided(windows, "a b", offsets)  # the best: "a b" of 1.5
    assert (found.null_score, found.margin, found.is_null, found.text) == (2.0, 0.5, True, "")
    found = decided(windows, "a b", offsets, threshold=0.5)
    assert (found.is_null, found.text) == (False, "a b")
    found = decided(windows, "a b", offsets, version_2=False)
    assert (found.is_null, found.null_probability) == (False, 0.0)
    assert sum(answer.probability for answer in found.answers) == pytest.approx(1.0)
    best = found.answers[0]
    assert (best.text, best.start, best.end) == ("a b", 0, 3)


def test_probabilities_are_the_softmax_of_scores_and_of_no_answer() -> None:
    found = decided([one_window([1.0, 0.0], [0.0, 0.5], 2.0)], "a b", [[0, 1], [2, 3]])
    scores = np.exp([1.5, 1.0, 0.5, 2.0])
    assert [answer.text for answer in found.answers] == ["a b", "a", "b"]
    shares = [*(answer.probability for answer in found.answers), found.null_probability]
    assert shares == pytest.approx((scores / scores.sum()).tolist())


def test_equal_texts_are_one_answer_and_a_context_without_tokens_has_none() -> None:
    found = decided([one_window([2.0, 1.0], [2.0, 1.0], 0.0)], "a a", [[0, 1], [2, 3]], max_answer_length=1)
    assert [(answer.text, answer.start) for answer in found.answers] == [("a", 0)]
    for version_2 in (True, False):
        found = decided([one_window([], [], 0.0)], "\u200b", [], version_2=version_2)
        assert (found.text, found.is_null, found.answers, found.margin) == ("", True, [], math.inf)
    found = decided([one_window([math.nan], [0.0], math.nan)], "a", [[0, 1]])
    assert found.is_null


ODD = [
    "un cafe\u0301 noir",
    "x \u2764\ufe0f y",
    "\U0001f468\u200d\U0001f469 z",
    "\u4e2d\u56fd",
    "a\u200bb c",
    "na\u00efve",
]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("context", ODD)
def test_answers_are_pieces_of_the_text_and_cut_no_letter(context: str, lowercase: bool) -> None:
    tokens = [*TOKENS, "cafe", "\u2764", "\U0001f468", "##\U0001f469", "\u4e2d", "\u56fd", "##\u0301"]
    tokenizer = WordPieceTokenizer(build(tokens, Normalising(lowercase, lowercase)))
    [(ids, offsets)] = tokenizer.encode_with_offsets([context])
    words = {"cafe": "cafe\u0301", "\u2764": "\u2764\ufe0f"}
    for first in range(len(ids)):
        starts = np.where(np.arange(len(ids)) == first, 5.0, 0.0).astype(np.float32)
        found = decided([Window(0, starts, starts, 0.0)], context, offsets, max_answer_length=1).answers[0]
        assert found.text == context[found.start : found.end]
        assert found.text not in words
        assert not found.text.startswith(("\u0301", "\ufe0f", "\u200d"))
        assert not context[found.end :].startswith(("\u0301", "\ufe0f", "\u200d"))
        assert 0 <= found.start < found.end <= len(context)


class Labelled(nn.Module):
    """Says what the labels say."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Batch) -> Tensor:
        assert batch.row_labels is not None
        logits = torch.zeros(batch.tokens, 2)
        at = batch.first[:, None] + batch.row_labels
        sure = (batch.row_labels[:, 0] > 0).float() * 10 + 1
        for side in range(2):
            logits[at[:, side], side] = sure
        return logits + self.nothing


def test_an_answer_among_the_last_tokens_of_a_long_context_is_found() -> None:
    task, facts = (
        TASKS["qa"],
        {
            "max_length": 40,
            "doc_stride": 9,
            "max_query_length": 8,
            "max_answer_length": 5,
            "n_best": 3,
            "version_2": True,
            "null_score_threshold": 0.0,
        },
    )
    tokenizer = WordPieceTokenizer(build(TOKENS, Normalising()))
    context = " ".join(itertools.islice(itertools.cycle("abcdefgh"), 5000)) + " x y z"
    examples = [
        Question("p", str(at), "a b", context, (context[at : at + 5],), ((at, at + 5),))
        for at in (0, 18, 60, 5000, len(context) - 7, len(context) - 5)
    ]
    encoded = encode_questions(tokenizer, examples, facts, known=True)
    assert len(encoded.rows) > 6 * 500
    for example, found in zip(examples, task.predict(Labelled(), encoded, facts), strict=True):
        best = found.answers[0]
        assert not found.is_null
        assert ((best.start, best.end),) == example.spans


# --- scores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "answers", "exact", "share", "share_2"),
    [
        ("The Broncos", ["Denver Broncos", "broncos"], 1, 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3, 2 / 3),
        ("the, a. cat!", ["an cat"], 1, 1, 1),
        ("cat cat", ["cat"], 0, 2 / 3, 2 / 3),
        ("don't", ["dont"], 1, 1, 1),
        ("a-b", ["ab"], 1, 1, 1),
        ("theory", ["ory"], 0, 0, 0),
        ("", [""], 1, 0, 1),
        ("x", [""], 0, 0, 0),
        ("", ["x"], 0, 0, 0),
        ("the", ["a"], 1, 0, 1),
        ("x", ["the", "x y"], 0, 2 / 3, 2 / 3),
        ("", ["the", "x"], 1, 0, 0),
        ("\u00c9t\u00e9", ["\u00e9t\u00e9"], 1, 1, 1),
    ],
)
def test_scores_of_worked_examples(found: str, answers: list[str], exact: int, share: float, share_2: float) -> None:
    assert best_scores(found, answers, version_2=False) == (exact, pytest.approx(share))
    [_, two] = best_scores(found, answers, version_2=True)
    assert two == pytest.approx(share_2)


TEXTS = st.text("abTHEthean .,'-\u00e9\t", max_size=14)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_scores_are_those_of_the_definition_step_by_step(found: str, answer: str) -> None:
    def steps(text: str) -> list[str]:
        kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return re.sub(r"\bthe\b|\ban\b|\ba\b", " ", kept).split()

    one, other = steps(found), steps(answer)
    assert normalized(found) == " ".join(one)
    assert exact_match(found, answer) == (one == other)
    shared = sum(min(one.count(word), other.count(word)) for word in set(one))
    expected = 0.0
    if shared:
        precision, recall = shared / len(one), shared / len(other)
        expected = 2 * precision * recall / (precision + recall)
    assert f1(found, answer, version_2=False) == pytest.approx(expected)
    assert f1(found, answer, version_2=True) == pytest.approx(expected if one and other else float(one == other))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.integers(-3, 3)), min_size=1, max_size=9))
def test_the_best_threshold_is_that_of_trying_all(rows: list[tuple[float, bool, int]]) -> None:
    def mean(threshold: float) -> float:
        return float(np.mean([(float(not has) if margin > threshold else value * has) for value, has, margin in rows]))

    score, threshold = best_threshold(*map(list, zip(*rows, strict=True)))  # type: ignore[arg-type]
    assert score == pytest.approx(max(map(mean, [-math.inf, *range(-3, 4)])))
    assert mean(threshold) == pytest.approx(score)


# --- from files to answers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run ``t``."""
    folder = tmp_path_factory.mktemp("qa")
    fit(qa_config(folder))
    return folder


@pytest.fixture(scope="module")
def with_null(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run ``t`` of questions of which half have no answer."""
    folder = tmp_path_factory.mktemp("qa2")
    for split, count, seed in (("train", 200, 0), ("dev", 20, 1), ("test", 20, 2)):
        write_squad(folder / f"{split}.json", *lettered(count, seed, impossible=True), version="v2.0")
    fit(qa_config(folder, train={"epochs": 6}))
    return folder


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_it_learns_to_answer_by_reading_the_question(trained: Path) -> None:
    scores = json.loads((trained / "runs/t/eval.json").read_text("utf-8"))
    assert scores["metric"] == "f1"
    for split in ("dev", "test"):
        assert scores["splits"][split]["scores"]["exact_match"] > 0.9
        assert scores["splits"][split]["baseline"]["f1"] < 0.6
    for line in lines_of(trained / "runs/t/predictions-test.jsonl"):
        assert line["true"][0].startswith(line["question"][0])
        assert (line["answer"] == line["true"][0]) or scores["splits"]["test"]["scores"]["exact_match"] < 1


def test_a_killed_run_goes_on_to_the_same_weights(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = qa_config(trained, name="killed", train={"save_every": 20})
    start, updates = read_start(config, say=silent), FineTuning.updates

    class Killed(Exception):
        pass

    def until(self: FineTuning, done: int):  # type: ignore[no-untyped-def]
        for step, batches in enumerate(updates(self, done), done):
            if step == 90:
                raise Killed
            yield batches

    monkeypatch.setattr(FineTuning, "updates", until)
    with pytest.raises(Killed):
        finetune(config, start, say=silent, progress=False)
    monkeypatch.setattr(FineTuning, "updates", updates)
    said: list[str] = []
    finetune(config, start, say=said.append, progress=False)
    assert any("update 80 of 250" in line for line in said)
    one, other = (load_file(trained / f"runs/{name}/best/model.safetensors") for name in ("t", "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_questions_without_an_answer_are_scored_apart(with_null: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["eval", str(with_null / "runs/t"), "--json", "-q"]) == 0
    split = json.loads(capsys.readouterr().out)["splits"]["dev"]
    assert (split["has_answer"]["questions"], split["no_answer"]["questions"]) == (20, 20)
    for name in ("exact_match", "f1"):
        parts = (split["has_answer"][name] + split["no_answer"][name]) / 2
        assert split["scores"][name] == pytest.approx(parts)
        assert split["best_thresholds"][name]["score"] >= split["scores"][name] - 1e-9
    assert split["baseline"] == {"exact_match": 0.5, "f1": 0.5}
    rows = lines_of(with_null / "runs/t/predictions-dev.jsonl")
    for row in rows:
        assert (row["answer"] == "") is (row["start"] is None) is (row["null_score"] > row["n_best"][0]["score"])
    assert Counter(not row["true"] for row in rows) == {True: 20, False: 20}
    assert command(["eval", str(with_null / "runs/t")]) == 0
    shown = capsys.readouterr().out
    assert "dev: 20 questions without one: exact_match" in shown
    assert "the baseline never answers" in shown


def test_the_command_answers_as_the_evaluation_does(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(trained / "runs/t")
    expected = lines_of(trained / "runs/t/predictions-dev.jsonl")
    assert command(["predict", "qa", "--file", str(trained / "dev.json"), "--model", run, "--top", "99", "-q"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for one, other in zip(found, expected, strict=True):
        assert (one["id"], one["answer"], one["start"]) == (other["id"], other["answer"], other["start"])
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert len(one["n_best"]) == len(other["n_best"])
    context = "cuv awx dyz bxx"
    for arguments in (["--question", "a a a a", "--context", context], [f"a a a a\t{context}"]):
        assert command(["predict", "qa", *arguments, "--model", run, "-q"]) == 0
        [line] = capsys.readouterr().out.splitlines()
        answer = json.loads(line)
        assert answer["answer"] == context[answer["start"] : answer["end"]] == "awx"
        assert answer.keys() == {"id", "question", "answer", "start", "end", "score", "probability", "null_score"}


def test_long_questions_and_contexts_are_read_in_windows_and_said(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = "c d e f " * 50 + "awx " + "g h " * 10
    arguments = ["predict", "qa", "--question", "a " * 50, "--context", context, "--model", str(trained / "runs/t")]
    assert command(arguments) == 0
    captured = capsys.readouterr()
    assert "1 of 1 questions read in windows of 24 tokens" in captured.err
    assert "1 questions cut to train.max_query_length" in captured.err
    found = json.loads(captured.out)
    assert found["answer"] == context[found["start"] : found["end"]]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--question", "q"], "--question, --context: give both, or neither"),
        (["--question", "q", "--context", ""], "--question, --context: a question, a tab and its context are expected"),
        (["a\tb", "c", "\td"], "argument 2: a question, a tab and its context are expected"),
        (["a\tb", "--file", "x.json"], "questions were given in two ways"),
        (["--file", "gone.json"], "gone.json: no such file"),
    ],
)
def test_what_is_no_question_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    assert command(["predict", "qa", *arguments, "--model", str(trained / "runs/t"), "-q"]) == 2
    captured = capsys.readouterr()
    assert fault in captured.err
    assert captured.out == ""


def test_a_context_that_the_tokenizer_leaves_nothing_of_has_no_answer(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_squad(tmp_path / "x.json", ("\u200b", [qa("1", "a")]), ("awx", [qa("2", "a")]))
    assert command(["predict", "qa", "-f", str(path), "--model", str(trained / "runs/t"), "-q"]) == 0
    one, other = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (one["answer"], one["start"], one["end"]) == ("", None, None)
    assert other["answer"]


@pytest.mark.parametrize("folder", ["trained", "with_null"])
def test_the_code_on_the_card_of_an_export_gives_the_same_answer(
    folder: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home: Path = request.getfixturevalue(folder)
    done = export_task(home / "runs/t", tmp_path / "out", say=silent)
    assert done.architecture == "BertForQuestionAnswering"
    assert done.difference == 0
    assert done.difference_transformers is not None
    assert done.difference_transformers < 1e-5
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "| f1 |" in card
    code = card.split("```python\n")[1].split("```")[0].replace("DIRECTORY", str(tmp_path / "out"))
    context = "cuv bwx \u00e0yz dxx"
    code = code.replace('question, context = "...", "..."', f'question, context = "b b b b", {context!r}')
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, {})
    arguments = ["--question", "b b b b", "--context", context, "--model", str(home / "runs/t"), "--top", "1", "-q"]
    capsys.readouterr()
    assert command(["predict", "qa", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    if folder == "trained":
        assert shown.getvalue() == f"{found['answer']}\n"
    else:
        assert shown.getvalue().splitlines()[1] == str(found["answer"] == "")

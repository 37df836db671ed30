"""Questions and answers out of files: what is read, refused, counted; rows and windows; where letters end."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_helpers import TOKENS
from qa_helpers import lettered, plain_qa, qa, qa_config, squad, write_squad
from tokenizers import Tokenizer
from train_helpers import write_config

from bertpt.cli.main import run as command
from bertpt.data.tokenizer.wordpiece import Normalising, WordPieceTokenizer, build
from bertpt.errors import RequestError
from bertpt.tasks.examples import read_splits
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.qa.graphemes import whole
from bertpt.tasks.qa.question_windows import Windows, covered, encode_questions, window_begins
from bertpt.tasks.qa.questions import Question, QuestionFile, read_questions

DECOMPOSED = "un cafe\u0301 noir"


def one(*answers: tuple[str, int], context: str = "ab cd ab ef", **more: Any) -> tuple[str, list[dict[str, Any]]]:
    return context, [qa("1", "which ?", *answers, **more)]


def read(path: Path, *paragraphs: tuple[str, list[dict[str, Any]]]) -> QuestionFile:
    return read_questions(write_squad(path / "x.json", *paragraphs))


# --- reading --------------------------------------------------------------------------------------------------


def test_squad_json_gives_questions_with_their_places_and_answers(tmp_path: Path) -> None:
    found = read(tmp_path, one(("cd", 3), ("cd ab", 3)), ("x", [qa("2", "why ?", is_impossible=True)]))
    assert not found.faults
    assert not +found.counts
    [first, second] = found.rows
    assert first == Question(
        f"{tmp_path}/x.json: data[0].paragraphs[0].qas[0]",
        "1",
        "which ?",
        "ab cd ab ef",
        ("cd", "cd ab"),
        ((3, 5), (3, 8)),
    )
    assert (first.is_impossible, second.is_impossible) == (False, True)
    assert second.place.endswith("data[0].paragraphs[1].qas[0]")


def test_json_lines_and_parquet_of_the_hub_give_the_same_questions(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "question": "which ?", "context": "ab cd", "answers": {"text": ["cd"], "answer_start": [3]}},
        {"id": "2", "question": "why ?", "context": "ab cd", "answers": {"text": [], "answer_start": []}},
    ]
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name, places in (("x.jsonl", [":1", ":3"]), ("x.parquet", [": row 1", ": row 2"])):
        found = read_questions(tmp_path / name)
        assert [(row.id, row.answers, row.spans) for row in found.rows] == [("1", ("cd",), ((3, 5),)), ("2", (), ())]
        assert [row.place for row in found.rows] == [f"{tmp_path / name}{place}" for place in places]


def test_answers_need_not_be_there_when_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "q", "context": "c"}\n{"question": "q", "context": "c", "answers": 7}\n', "utf-8")
    found = read_questions(path, answered=False)
    assert [(row.id, row.answers) for row in found.rows] == [("line 1", None), ("line 2", None)]
    assert len(read_questions(path).faults) == 2


@pytest.mark.parametrize(
    ("answer", "start", "span", "counts", "note"),
    [
        ("cd", 3, (3, 5), {}, None),
        (" cd ", 2, (3, 5), {}, None),
        ("ab  cd", 0, (0, 5), {"spaces": 1}, None),
        ("cd", 2, (3, 5), {"spaces": 1}, None),
        ("cd", 4, None, {"bad_start": 1, "elsewhere": 1, "unusable": 1}, "where 'd ' is; it stands once, at 3"),
        ("ab", 3, None, {"bad_start": 1, "unusable": 1}, "it stands at 2 other places"),
        ("zz", 0, None, {"bad_start": 1, "unusable": 1}, "it stands at no other places"),
        ("ef", -2, None, {"bad_start": 1, "elsewhere": 1, "unusable": 1}, "does not stand at -2"),
        ("ef", 999, None, {"bad_start": 1, "elsewhere": 1, "unusable": 1}, "does not stand at 999, where '' is"),
        ("", 0, None, {"blank_answer": 1, "unusable": 1}, "a blank answer"),
    ],
)
def test_an_answer_is_looked_up_where_it_should_stand(
    tmp_path: Path, answer: str, start: int, span: tuple[int, int] | None, counts: dict[str, int], note: str | None
) -> None:
    found = read(tmp_path, one((answer, start)))
    assert not found.faults
    assert found.rows[0].spans == (() if span is None else (span,))
    assert +found.counts == counts
    assert len(found.notes) == (note is not None)
    if note:
        assert found.notes[0].startswith(f"{tmp_path}/x.json: data[0].paragraphs[0].qas[0]: question 1: ")
        assert note in found.notes[0]


QAS = "data[0].paragraphs[0].qas"


@pytest.mark.parametrize(
    ("paragraphs", "fault"),
    [
        ([("", [qa("1", "q")])], "data[0].paragraphs[0]: context: is empty"),
        ([(" \n", [qa("1", "q")])], "data[0].paragraphs[0]: context: is empty"),
        ([(None, [qa("1", "q")])], "data[0].paragraphs[0]: context: is missing"),
        ([("c", [qa("1", " ")])], f"{QAS}[0]: question: is empty"),
        ([("c", [{"id": "1", "answers": []}])], f"{QAS}[0]: question: is missing"),
        ([("c", [{"id": "1", "question": "q"}])], f"{QAS}[0]: answers: is missing"),
        ([("c", [qa("1", "q") | {"answers": "c"}])], f"{QAS}[0]: answers: a list is expected, not str"),
        ([("c", [qa("1", "q") | {"answers": [{"text": "c"}]}])], f"{QAS}[0].answers[0]: text, and a whole number"),
        ([("c", [qa("1", "q", ("c", True))])], f"{QAS}[0].answers[0]: text, and a whole number"),
        ([("c", [qa("1", "q", ("c", 0), is_impossible=True)])], "answers: holds 1 answers, but is_impossible is true"),
        ([("c", [qa("1", "q", is_impossible=False)])], "answers: is empty, but is_impossible is false"),
        ([("c", [qa("1", "q"), qa("1", "r")])], f"{QAS}[1]: id '1' is that of "),
        ([("c", [7])], f"{QAS}[0]: an object is expected, not int"),
        ([("c", {})], "data[0].paragraphs[0]: a list 'qas' is expected"),
    ],
)
def test_a_malformed_question_is_named_by_its_path(tmp_path: Path, paragraphs: list[Any], fault: str) -> None:
    found = read(tmp_path, *paragraphs)
    assert len(found.faults) == 1
    assert found.faults[0].startswith(f"{tmp_path}/x.json: ")
    assert fault in found.faults[0]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("x.json", '{"data": [\n{]}', "line 2, column 2: not JSON"),
        ("x.json", '{"a": 1}\n{"a": 2}\n', "line 2, column 1: not JSON: Extra data; JSON lines have the ending .jsonl"),
        ("x.json", "[]", "not the JSON of SQuAD"),
        ("x.json", "[" * 100_000, "nested too deeply"),
        ("x.txt", "{}", "its ending tells no format"),
        ("x.parquet", "no", "not readable as Parquet"),
        ("gone.json", None, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: str | None, fault: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        read_questions(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert fault in str(caught.value)


def test_a_malformed_line_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": \n[1]\n{"question": "q", "context": "c", "answers": {"text": [1]}}\n', "utf-8")
    faults = read_questions(path).faults
    assert [fault.startswith(f"{path}:{line}: ") for line, fault in enumerate(faults, 1)] == [True] * 3


def test_half_of_a_surrogate_pair_keeps_all_offsets_and_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(squad(one(("cd", 5), context="ab \ud83d cd"))), encoding="utf-8")
    [row] = read_questions(tmp_path / "x.json").rows
    assert row.context[slice(*row.spans[0])] == "cd"
    row.context.encode()


# --- what is learnt from --------------------------------------------------------------------------------------


def test_questions_without_a_usable_answer_are_scored_but_not_trained_on(tmp_path: Path) -> None:
    bad, good = one(("zz", 0)), ("ab cd", [qa("2", "why ?", ("cd", 3))])
    for split in ("train", "dev"):
        write_squad(tmp_path / f"{split}.json", bad, good)
    config = qa_config(tmp_path, data={"test": None})
    splits = read_splits(TASKS["qa"], config)
    assert [row.id for row in splits.examples["train"]] == ["2"]
    assert [row.id for row in splits.examples["dev"]] == ["1", "2"]
    assert splits.counts["train"] == {"bad_start": 1, "unusable": 1}
    write_squad(tmp_path / "train.json", bad)
    with pytest.raises(RequestError, match="no answer stands where it should"):
        read_splits(TASKS["qa"], config)


def test_questions_without_an_answer_are_found_in_train_or_allowed_by_setting(tmp_path: Path) -> None:
    answered, impossible = one(("cd", 3)), ("x", [qa("2", "why ?", is_impossible=True)])
    write_squad(tmp_path / "train.json", answered)
    write_squad(tmp_path / "dev.json", answered, impossible)

    def facts(value: bool | None) -> dict[str, Any]:
        data = {"test": None, "version_2_with_negative": value}
        return read_splits(TASKS["qa"], qa_config(tmp_path, data=data)).facts

    with pytest.raises(RequestError, match=r"dev\.json: data\[0\]\.paragraphs\[1\]\.qas\[0\]: has no answer, as no"):
        facts(None)
    assert facts(True)["version_2"] is True
    write_squad(tmp_path / "train.json", answered, impossible)
    assert facts(None)["version_2"] is True
    with pytest.raises(RequestError, match="1 questions have no answer, so"):
        facts(False)


# --- rows and windows -----------------------------------------------------------------------------------------

FACTS = {"max_length": 16, "doc_stride": 4, "max_query_length": 5, "max_answer_length": 30}


@functools.cache
def tokenizer(*more: str, lowercase: bool = True) -> WordPieceTokenizer:
    return WordPieceTokenizer(build([*TOKENS, *more], Normalising(lowercase, lowercase)))


def encoded(*questions: Question, facts: dict[str, Any] | None = None) -> Windows:
    return encode_questions(tokenizer(), questions, FACTS | (facts or {}), known=True)


def asked(question: str, context: str, *spans: tuple[int, int]) -> Question:
    return Question("p", "1", question, context, tuple(context[a:b] for a, b in spans), spans)


@functools.cache
def library() -> Tokenizer:
    return build(TOKENS, Normalising())


WORDS = st.text("abcdefgh ", max_size=60)


@settings(deadline=None)
@given(WORDS.filter(str.strip), WORDS, st.integers(1, 12), st.data())
def test_windows_are_those_of_the_tokenizers_library(
    question: str, context: str, room: int, data: st.DataObject
) -> None:
    """Its stride is what two windows share, ours what lies between their begins, as in the released code."""
    stride = data.draw(st.integers(1, room))
    theirs = library()
    theirs.no_truncation()
    length = len(theirs.encode(question).ids) + 1 + room
    theirs.enable_truncation(length, stride=room - stride, strategy="only_second")
    first = theirs.encode(question, context)
    expected = [first, *first.overflowing]
    ours = encoded(asked(question, context), facts={"max_length": length, "doc_stride": stride, "max_query_length": 99})
    assert len(ours.rows) == len(expected)
    for row, wanted in enumerate(expected):
        span = slice(ours.rows.offsets[row], ours.rows.offsets[row + 1])
        assert ours.rows.ids[span].tolist() == wanted.ids
        assert ours.rows.types[span].tolist() == wanted.type_ids
        inside = [place for place, part in zip(wanted.offsets, wanted.type_ids, strict=True) if part][:-1]
        begin = ours.begins[row]
        assert ours.offsets[0][begin : begin + ours.sizes[row]].tolist() == [list(place) for place in inside]


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 30), st.data())
def test_windows_leave_no_token_out(tokens: int, room: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, room))
    windows = window_begins(tokens, room, stride)
    seen = np.zeros(tokens, int)
    for begin, size in windows:
        assert size <= room
        seen[begin : begin + size] += 1
    assert (seen > 0).all()
    assert sum(windows[-1]) == tokens
    assert all(sum(window) < tokens for window in windows[:-1])


def test_the_window_that_holds_the_whole_answer_has_its_span_the_others_have_the_first_token() -> None:
    context = " ".join("abcdefghijklmnopqrst")  # 20 tokens; windows of 10 every 4: 0-9, 4-13, 8-17, 12-19
    [begin, end] = [context.index("i"), context.index("k") + 1]  # tokens 8 to 10
    ours = encoded(asked("a b c", context, (begin, end)))
    assert ours.labels is not None
    assert ours.labels.tolist() == [[0, 0], [5 + 8 - 4, 5 + 10 - 4], [5, 5 + 2], [0, 0]]
    row = slice(ours.rows.offsets[1] + 9, ours.rows.offsets[1] + 12)
    assert ours.rows.ids[row].tolist() == [TOKENS.index(letter) for letter in "ijk"]
    assert ours.cut == 1
    assert ours.full.tolist() == [26]


def test_a_long_question_is_cut_and_counted_and_its_context_is_read_whole() -> None:
    ours = encoded(asked("a " * 400, "b c d", (4, 5)), asked("a", ""))
    assert ours.counts == {"long_question": 1}
    assert ours.rows.lengths.tolist() == [5 + 3 + 3, 1 + 3]
    assert ours.labels is not None
    assert ours.labels.tolist() == [[9, 9], [0, 0]]


@pytest.mark.parametrize(
    ("text", "piece", "tokens"),
    [
        ("ab cd", (0, 2), (0, 1)),
        ("ab cd", (1, 4), (1, 2)),
        ("ab cd", (2, 3), None),
        ("a \u200b b", (2, 3), None),
    ],
)
def test_tokens_of_an_answer(text: str, piece: tuple[int, int], tokens: tuple[int, int] | None) -> None:
    [(_, offsets)] = tokenizer().encode_with_offsets([text])
    assert covered(piece, offsets) == tokens


def test_odd_answers_are_counted() -> None:
    context = "abc d \u200b e f g h"
    ours = encoded(
        asked("a", context, (1, 3)),  # two whole pieces
        asked("a", context, (4, 15)),
        asked("a", context, (6, 7)),
        facts={"max_length": 32, "max_answer_length": 4},
    )
    assert ours.counts == {"long_answer": 1, "no_token": 1}
    joined = WordPieceTokenizer(build([*TOKENS, "abc"], Normalising()))
    assert encode_questions(joined, [asked("a", context, (1, 3))], FACTS, known=True).counts == {"inside_token": 1}


def test_offsets_give_the_ids_of_encoding_and_lead_back_to_the_text() -> None:
    texts = [
        "",
        DECOMPOSED,
        "\u4e2d\u56fd a",
        "a\u200bb \x85 c",
        "[SEP] [MASK]",
        "\ud55c a",
        "\U0001f468\u200d\U0001f469",
    ]
    for lowercase in (True, False):
        ours = tokenizer(*"\u1112\u4e2d[", "##\u1161", lowercase=lowercase)
        for text, (ids, offsets) in zip(texts, ours.encode_with_offsets(texts), strict=True):
            [expected] = ours.encode_sentences([text])
            assert ids.tolist() == expected
            assert offsets.shape == (len(ids), 2)
            assert ((offsets[:, 0] >= 0) & (offsets[:, 0] < offsets[:, 1]) & (offsets[:, 1] <= len(text))).all()


# --- where letters end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "piece", "expected"),
    [
        (DECOMPOSED, (3, 7), "cafe\u0301"),
        ("a\u0301\u0302b", (0, 1), "a\u0301\u0302"),
        ("xa\u0301b", (2, 4), "a\u0301b"),
        ("\u2764\ufe0f!", (0, 1), "\u2764\ufe0f"),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 x", (0, 1), "\U0001f468\u200d\U0001f469\u200d\U0001f467"),
        ("\U0001f468\u200d\U0001f469 x", (2, 3), "\U0001f468\u200d\U0001f469"),
        ("\U0001f44d\U0001f3fd.", (0, 1), "\U0001f44d\U0001f3fd"),
        ("\u1112\u1161\u11ab\u1112", (0, 1), "\u1112\u1161\u11ab"),
        ("\u4e2d\u56fd", (0, 1), "\u4e2d"),
        ("ab", (0, 1), "a"),
        ("\u0301a", (0, 1), "\u0301"),
        ("\u0915\u094d\u0937\u0915", (0, 1), "\u0915\u094d\u0937"),
        ("\u200d\u0301a", (0, 1), "\u200d\u0301"),
    ],
)
def test_no_letter_is_cut(text: str, piece: tuple[int, int], expected: str) -> None:
    begin, end = whole(text, *piece)
    assert text[begin:end] == expected


LETTERS = st.text("ab e\u0301\u0302\ufe0f\u2764\U0001f468\U0001f469\u200d\U0001f3fd\u1112\u1161\u11ab\ud55c\u4e2d")


@settings(deadline=None)
@given(LETTERS.filter(bool), st.data())
def test_a_piece_begins_and_ends_where_grapheme_clusters_do(text: str, data: st.DataObject) -> None:
    regex = pytest.importorskip("regex")
    begin = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(begin + 1, len(text)))
    bounds = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    first, last = whole(text, begin, end)
    assert first <= begin
    assert end <= last
    assert {first, last} <= bounds


# --- configuration and inspect --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"doc_stride": 16}, "train.doc_stride: 16 is more than the 15 tokens of a window beside a question of 6"),
        ({"max_query_length": 21}, "train.max_query_length: 21 leaves no room for the context in rows of 24 tokens"),
        ({"max_length": 64}, "train.max_length: 64 is above the 48 positions"),
        ({"metric": "accuracy"}, "train.metric"),
    ],
)
def test_settings_that_would_skip_tokens_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], fault: str
) -> None:
    path = write_config(tmp_path / "c.yaml", plain_qa(tmp_path, train=changes))
    assert command(["finetune", "qa", "--config", str(path), "-q"]) == 2
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str, **sections: Any) -> tuple[int, str, str]:
        path = write_config(tmp_path / "c.yaml", plain_qa(tmp_path, **sections))
        code = command(["inspect", "task", "--config", str(path), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_inspect_counts_answers_lengths_and_shared_contexts_and_names_bad_answers(
    tmp_path: Path, inspected: Callable[..., tuple[int, str, str]]
) -> None:
    write_squad(
        tmp_path / "train.json",
        ("ab cd", [qa("1", "a b c d e f g", ("cd", 3)), qa("2", "why", ("cd", 0))]),
        ("a " * 40, [qa("3", "a", is_impossible=True)]),
    )
    write_squad(tmp_path / "dev.json", ("ab  cd", [qa("4", "why", ("ab", 0)), qa("5", "who", ("ab", 0))]))
    code, out, _ = inspected("--json", data={"test": None})
    assert code == 0
    report = json.loads(out)["splits"]
    train = report["train"]
    assert {key: train["labels"][key] for key in ("with an answer", "without", "contexts")} == {
        "with an answer": 2,
        "without": 1,
        "contexts": 2,
    }
    assert train["counts"] == {"bad_start": 1, "elsewhere": 1, "unusable": 1, "long_question": 1}
    assert (train["lengths"]["largest"], train["cut"]) == (44, 1)
    [note] = train["notes"]
    assert note.startswith(f"{tmp_path}/train.json: data[0].paragraphs[0].qas[1]: question 2: answer 'cd' does not")
    assert note.endswith("stand at 0, where 'ab' is; it stands once, at 3")
    assert (report["dev"]["in_train"], report["dev"]["sources_in_train"]) == (1, 2)
    code, out, _ = inspected(data={"test": None})
    assert "about texts of train: 2 (100.0%)" in out
    assert "question 2: answer 'cd' does not stand at 0" in out
    assert "1 questions of which no answer stands where it should (not trained on)" in out


def test_inspect_lists_faults_though_nothing_can_be_learnt(
    tmp_path: Path, inspected: Callable[..., tuple[int, str, str]]
) -> None:
    write_squad(tmp_path / "train.json", ("ab cd", [qa("1", "why", ("cd", 0))]))
    write_squad(tmp_path / "dev.json", ("", [qa("1", "why", ("cd", 0))]))
    code, out, err = inspected(data={"test": None})
    assert code == 2
    assert "question 1: answer 'cd' does not stand at 0" in out
    assert "train.json: no answer stands where it should" in err
    assert "dev.json: data[0].paragraphs[0]: context: is empty" in err


def test_the_generated_questions_are_well_formed(tmp_path: Path) -> None:
    found = read_questions(write_squad(tmp_path / "x.json", *lettered(10, 0, impossible=True)))
    assert not found.faults
    assert not found.notes
    assert sum(row.is_impossible for row in found.rows) == 10

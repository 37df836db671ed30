"""Splitting documents into sentences."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpt.config.languages import LANGUAGES, language_code
from bertpt.data.tokens.sentences import split_sentences
from bertpt.errors import RequestError

ABBREVIATIONS = ["e.g.", "i.e.", "Dr.", "Mr.", "Mrs.", "St.", "No.", "Fig.", "vs.", "p.", "U.S."]


@pytest.mark.parametrize("short", ABBREVIATIONS)
def test_abbreviations_do_not_end_sentences(short: str) -> None:
    text = f"We write {short} this once. Then comes another one."
    assert split_sentences(text, "en") == [f"We write {short} this once.", "Then comes another one."]


def test_quotes_questions_and_ellipses() -> None:
    text = '"Really?" she asked. Yes! He paid $3.50 to J. R. Smith. “Go.” Then he went.'
    assert split_sentences(text, "en") == [
        '"Really?" she asked.',
        "Yes!",
        "He paid $3.50 to J. R. Smith.",
        "“Go.”",
        "Then he went.",
    ]


def test_every_line_is_a_paragraph_of_its_own() -> None:
    assert split_sentences("A title\nOne. Two\n\n  Three goes on  ", "en") == [
        "A title",
        "One.",
        "Two",
        "Three goes on",
    ]


def test_lines_mode_never_splits() -> None:
    text = "One. Two. e.g. three\nFour!  Five?\n\n \nSix"
    assert split_sentences(text, "en", "lines") == ["One. Two. e.g. three", "Four!  Five?", "Six"]


def test_only_line_feeds_end_lines() -> None:
    assert split_sentences("a\u2028b\x0bc", "en", "lines") == ["a\u2028b\x0bc"]


@pytest.mark.parametrize("text", ["", "\n\n", " \t \n\u3000"])
def test_text_without_sentences(text: str) -> None:
    assert split_sentences(text, "en") == split_sentences(text, "en", "lines") == []


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("de", "Das gilt z.B. hier. Am 5. Mai kam er. Gut.", 3),
        ("hi", "यह है। वह है।", 2),
        ("ja", "これは文です。次の文です。", 2),
        ("zh", "中文句子。第二句！", 2),
        ("el", "Τι είναι; Ναι.", 2),
        ("pt-BR", "O Sr. Silva chegou. Ele saiu.", 2),
        ("frr", "One. Two.", 2),
    ],
)
def test_other_languages(language: str, text: str, count: int) -> None:
    assert len(split_sentences(text, language)) == count


def test_marks_alone_are_no_sentence() -> None:
    for text in ('He said. " Then', "One. ) Two.", "... One.", '"\'" Two.', "One. --"):
        found = split_sentences(text, "en")
        assert all(any(letter.isalnum() for letter in sentence) for sentence in found), found


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.sampled_from("ab AB.!?…。'\"()“”1 \t\n\u00a0é中\u2028😀e.g."), max_size=60),
    st.sampled_from(["en", "de", "zh"]),
)
def test_nothing_but_white_space_is_lost_and_order_is_kept(text: str, language: str) -> None:
    found = split_sentences(text, language)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in found)


def test_a_long_text_is_split_as_its_lines_are() -> None:
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["One.", "two", "Three!", "e.g.", "four?"], k=20)) for _ in range(200)]
    assert split_sentences("\n".join(lines), "en") == [s for line in lines for s in split_sentences(line, "en")]


@pytest.mark.parametrize(
    ("language", "hint"), [("english", "en"), ("German", "de"), ("eng", "en"), ("xx", "x"), ("", "codes look like")]
)
def test_unknown_languages_are_refused_with_a_suggestion(language: str, hint: str) -> None:
    with pytest.raises(RequestError, match=rf"corpus\.language: .*{language!r}.*{hint}"):
        split_sentences("One. Two.", language)


def test_language_codes_are_looked_up_without_case_or_region() -> None:
    assert [language_code(code) for code in ("EN", "pt_BR", "de-AT", "zh-min-nan")] == ["en", "pt", "de", "zh-min-nan"]
    assert len(LANGUAGES) > 300


def test_a_line_that_makes_the_library_panic_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panics(code: str, line: str) -> list[str]:
        raise PanicException("end byte index 6 is not a char boundary")

    monkeypatch.setattr("bertpt.data.tokens.sentences.segment", panics)
    assert split_sentences("One. Two.\nThree.", "en") == ["One. Two.", "Three."]

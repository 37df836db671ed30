"""Adding words to a given vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stage_helpers import make_config
from tokenizers import Tokenizer

from bertpt.cli.main import run as bertpt
from bertpt.config import Config
from bertpt.data.locate import tokenizer_dir
from bertpt.data.tokenizer.extend import extend, new_entries
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokenizer.wordpiece import SPECIALS, Normalising, WordPieceTokenizer, load_tokenizer, save
from bertpt.errors import RequestError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [*SPECIALS, "[unused0]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "heart", "-", "new"]


def quiet(_: str) -> None:
    """Say nothing."""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A tokenizer folder of another model."""
    folder = tmp_path / "given"
    folder.mkdir()
    save(folder, TOKENS, Normalising())
    return folder


def config(tmp_path: Path, given: Path, words: Path | None, **more: str) -> Config:
    extend_from = {} if words is None else {"extend_from": str(words)}
    return make_config(tmp_path / "data", tokenizer={"from": str(given)} | extend_from | more)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_words_become_entries_at_the_end_and_all_old_ids_stay(given: Path, tmp_path: Path) -> None:
    words = write(tmp_path / "words.txt", "Angina\r\nheart\n\nstent\nANGINA\n \u200b\nÉcho\n")
    said: list[str] = []
    made = train_tokenizer(config(tmp_path, given, words), say=said.append, progress=False)
    tokenizer = load_tokenizer(made.directory)
    assert tokenizer.tokens == [*TOKENS, "angina", "stent", "echo"]
    assert made.manifest["counts"] == {
        "entries": len(TOKENS) + 3,
        "extension": {"added": 3, "already": 1, "repeated": 1, "blank": 2, "special": 0, "inside": 0},
    }
    line = next(line for line in said if "added" in line)
    assert str(words) in line
    assert "3 words added" in line
    assert "1 entry already, 1 repeated, 2 blank lines" in line
    [ids] = tokenizer.encode_sentences(["STENT"])
    assert ids == [len(TOKENS) + 1]


def test_other_tools_read_the_same_entries(given: Path, tmp_path: Path) -> None:
    words = write(tmp_path / "words.txt", "angina\nstent\n")
    made = train_tokenizer(config(tmp_path, given, words), say=quiet, progress=False)
    before = Tokenizer.from_file(str(given / "tokenizer.json"))
    after = Tokenizer.from_file(str(made.directory / "tokenizer.json"))
    pieces = ["[CLS]", "a", "s", "##t", "##e", "##n", "##t", "-", "a", "##n", "##g", "##i", "##n", "##a", "[SEP]"]
    assert before.encode("a stent - angina").tokens == pieces
    assert after.encode("a stent - angina").tokens == ["[CLS]", "a", "stent", "-", "angina", "[SEP]"]
    old = before.get_vocab(with_added_tokens=True)
    assert {token: after.token_to_id(token) for token in old} == old
    assert (made.directory / "vocab.txt").read_text("utf-8").split("\n")[:-1] == [*TOKENS, "angina", "stent"]


def test_a_vocabulary_file_gives_its_whole_words(given: Path, tmp_path: Path) -> None:
    words = write(tmp_path / "vocab.txt", "".join(f"{t}\n" for t in [*SPECIALS, "[unused7]", "a", "##itis", "stent"]))
    made = train_tokenizer(config(tmp_path, given, words), say=quiet, progress=False)
    assert load_tokenizer(made.directory).tokens == [*TOKENS, "stent"]
    assert made.manifest["counts"]["extension"] == {
        "added": 1, "already": 1, "repeated": 0, "blank": 0, "special": 6, "inside": 1}  # fmt: skip


def test_cased_words_keep_their_capitals(tmp_path: Path) -> None:
    made = extend(
        TOKENS, Normalising(lowercase=False, strip_accents=False), write(tmp_path / "w", "Échо\nStent\nstent\n")
    )
    assert made.tokens[len(TOKENS) :] == ["Échо", "Stent", "stent"]


def test_lines_that_are_not_one_word_are_refused_together_with_file_and_line(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(tmp_path / "words.txt", f"stent\nheart attack\nx-ray\n{'a' * 101}\n\u0301\nangina\n")
    settings = {"tokenizer.from": given, "tokenizer.extend_from": words, "corpus.sources": "[{kind: docstrings}]"}
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    code = bertpt(["train-tokenizer", "--config", "demo", "--data-dir", str(tmp_path / "data"), *arguments])
    assert code == 2
    lines = capsys.readouterr().err.split("\n")
    assert f"{words}: line 2: 'heart attack' is 2 words to the tokenizer (heart attack)" in lines[-5]
    assert f"{words}: line 3: 'x-ray' is 3 words to the tokenizer (x - ray)" in lines[-4]
    assert f"{words}: line 4: " in lines[-3]
    assert "101 letters" in lines[-3]
    assert f"{words}: line 5: " in lines[-2]
    assert not (tmp_path / "data").exists()


def test_many_faulty_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        extend(TOKENS, Normalising(), write(tmp_path / "w", "two words\n" * 25))
    assert len(caught.value.faults) == 11
    assert "15 more" in caught.value.faults[-1]


def test_a_file_that_is_missing_or_not_utf8_is_named(given: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"tokenizer\.extend_from: .*nothing\.txt: no such file"):
        train_tokenizer(config(tmp_path, given, tmp_path / "nothing.txt"), say=quiet, progress=False)
    bad = tmp_path / "latin1.txt"
    bad.write_bytes(b"stent\ncaf\xe9\n")
    with pytest.raises(RequestError, match=r"latin1\.txt: line 2, byte 9: 0xe9"):
        train_tokenizer(config(tmp_path, given, bad), say=quiet, progress=False)


def test_words_without_a_vocabulary_to_extend_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"tokenizer\.extend_from: .* set tokenizer\.from or model\.init_from"):
        make_config(tmp_path, tokenizer={"extend_from": "words.txt"})


def test_other_words_are_another_tokenizer(given: Path, tmp_path: Path) -> None:
    words = write(tmp_path / "words.txt", "angina\n")
    places = {tokenizer_dir(config(tmp_path, given, None)), tokenizer_dir(config(tmp_path, given, words))}
    write(words, "stent\n")
    places.add(tokenizer_dir(config(tmp_path, given, words)))
    assert len(places) == 3


def test_what_is_new_in_a_vocabulary() -> None:
    assert new_entries(TOKENS, [*TOKENS, "stent"]) == [len(TOKENS)]
    # A word put into an unused slot by hand is new as well.
    by_hand = ["angina" if token == "[unused0]" else token for token in TOKENS]
    assert new_entries(TOKENS, [*by_hand, "stent"]) == [5, len(TOKENS)]
    with pytest.raises(RequestError, match=r"entry 6 is 'b', .* 'a'"):
        new_entries(TOKENS, [*TOKENS[:6], *TOKENS[7:]])
    with pytest.raises(RequestError, match=f"{len(TOKENS) - 1} entries, .* {len(TOKENS)}"):
        new_entries(TOKENS, TOKENS[:-1])


def test_only_texts_with_added_words_are_cut_in_another_way(given: Path, tmp_path: Path) -> None:
    words = write(tmp_path / "words.txt", "stent\n")
    made = extend(TOKENS, Normalising(), words)
    old = load_tokenizer(given)
    save(tmp_path / "new", made.tokens, Normalising())
    new: WordPieceTokenizer = load_tokenizer(tmp_path / "new")
    plain = ["heart new abc", "a - b", "xyz"]
    assert new.encode_sentences(plain) == old.encode_sentences(plain)
    # Longest match first: a new word is also the beginning of longer ones.
    [ids] = new.encode_sentences(["stents"])
    assert [new.token(index) for index in ids] == ["stent", "##s"]
    assert json.loads((tmp_path / "new" / "special_tokens_map.json").read_text("utf-8"))["mask_token"] == "[MASK]"

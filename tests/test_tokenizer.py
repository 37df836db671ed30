"""The tokenizer stage: vocabularies that are deterministic, complete, of the size asked, and given ones."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_helpers import LM_SOTU, make_config, put_documents, wordy_documents
from tokenizers import Tokenizer, pre_tokenizers

from bertpt.data.tokenizer import vocabulary
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokenizer.vocabulary import WordCounts, choose_alphabet, count_words, learn_vocabulary
from bertpt.data.tokenizer.wordpiece import (
    SPECIALS,
    Normalising,
    WordPieceTokenizer,
    build,
    library_faults,
    load_tokenizer,
    save,
)
from bertpt.errors import BertptError, RequestError
from bertpt.progress import peak_memory

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CJK = [chr(0x4E00 + i) for i in range(3000)]


def quiet(_: str) -> None:
    pass


def train(data_dir: Path, said: list[str] | None = None, **chosen: Any) -> WordPieceTokenizer:
    config = make_config(data_dir, tokenizer=chosen)
    result = train_tokenizer(config, say=quiet if said is None else said.append, progress=False)
    return load_tokenizer(result.directory)


def small(tokens: list[str], flags: Normalising | None = None) -> WordPieceTokenizer:
    return WordPieceTokenizer(build([*SPECIALS, *tokens], flags or Normalising()))


def library_ids(tokenizer: WordPieceTokenizer, text: str, directory: Path) -> list[int]:
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return list(backend.encode(text, add_special_tokens=False).ids)


# --- determinism ----------------------------------------------------------------------------------------------

STAGES = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stage_helpers import make_config
from bertpt.data.tokens.prepare import prepare
from bertpt.data.tokenizer.training import train_tokenizer
config = make_config(Path(sys.argv[1]), tokenizer={"vocab_size": 600})
train_tokenizer(config, say=lambda line: None, progress=False)
prepare(config, say=lambda line: None, progress=False)
"""


def folder_bytes(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_files_are_byte_identical_in_any_process(tmp_path: Path) -> None:
    put_documents(tmp_path / "0", wordy_documents(60))
    results = []
    for run in range(4):
        data_dir = tmp_path / str(run)
        if run:
            shutil.copytree(tmp_path / "0" / "c" / "documents", data_dir / "c" / "documents")
        variables = {"PYTHONHASHSEED": str(run), "RAYON_NUM_THREADS": str(1 + run % 2)}
        subprocess.run(
            [sys.executable, "-c", STAGES, str(data_dir), str(Path(__file__).parent)],
            check=True,
            env=os.environ | variables,
        )
        results.append(folder_bytes(data_dir))
    assert len(results[0]) == 3 + 5 + 13
    assert all(result == results[0] for result in results)


def test_the_order_in_which_words_were_counted_does_not_matter() -> None:
    words = count_words(wordy_documents(40), Normalising()).words
    alphabet = choose_alphabet(words, 600, Normalising())
    backwards = Counter(dict(reversed(list(words.items()))))
    results = [learn_vocabulary(counts, alphabet, 600, 2) for counts in (words, backwards) * 3]
    assert all(result == results[0] for result in results)


def test_word_counts_equal_the_librarys_own_splitting() -> None:
    texts = [
        "Don't — naïve\u00a0Café,\tże! 日本語\u3000x\u2028y a\x0bb c\x85d e\u200bf",
        "x " * 50,
        "İstanbul ẞ \ufffd",
    ]
    flags = Normalising()
    expected = Counter(
        word
        for text in texts
        for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(flags.normalizer().normalize_str(text))
    )
    assert count_words(texts, flags).words == expected


def test_counting_in_small_portions_gives_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = wordy_documents(20)
    whole = count_words(texts, Normalising()).words
    monkeypatch.setattr(vocabulary, "MAX_CHUNKS", 50)
    assert count_words(texts, Normalising()).words == whole


def test_memory_bound_drops_the_rarest_words_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_CHUNKS", 3)
    counted = count_words(["one two two three three four õx õx õx"], Normalising(strip_accents=False), most=2)
    assert counted.words == {"õx": 3, "three": 2}  # of equal ones the first
    assert (counted.pruned, counted.pruned_occurrences) == (3, 4)
    counted.keep(1)
    assert counted.words == {"õx": 3}
    assert choose_alphabet(counted.words, 100, Normalising(), counted.pruned_letters).letters == sorted(
        set("onetwhrfuõx")
    )  # of all words
    assert count_words(["a b c a b d d d"], Normalising()).words == {"a": 2, "b": 2, "c": 1, "d": 3}


def test_the_words_that_are_kept_are_the_first_by_frequency_and_then_by_code_point() -> None:
    draw = random.Random(0)
    for size, highest in ((1, 1), (40, 3), (200, 9), (300, 1)):
        words = {f"w{draw.randrange(10**6)}": draw.randint(1, highest) for _ in range(size)}
        ranked = sorted(words, key=lambda word: (-words[word], word))
        for most in (1, size // 2, size - 1, size, size + 5):
            counted = WordCounts(Counter(words))
            counted.keep(max(1, most))
            assert counted.words == {word: words[word] for word in ranked[: max(1, most)]}
            assert counted.pruned == max(0, len(words) - max(1, most))
            assert counted.pruned_occurrences == sum(words.values()) - sum(counted.words.values())


def test_the_trainer_gets_the_most_frequent_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_documents(tmp_path, ["zebra zebra apple apple apple fig"])
    said: list[str] = []
    monkeypatch.setattr("bertpt.data.tokenizer.training.MAX_TRAINED", 2)
    monkeypatch.setattr("bertpt.data.tokenizer.training.TRAINED_PER_ENTRY", 0)
    tokens = train(tmp_path, said, vocab_size=300).tokens
    assert "zebra" in tokens
    assert {"f", "##g"} <= set(tokens)
    assert "fig" not in tokens
    assert any("1 rare words left out" in line for line in said)


# --- size and content -----------------------------------------------------------------------------------------


def test_order_of_entries_specials_letters_inner_letters_pieces(tmp_path: Path) -> None:
    put_documents(tmp_path, wordy_documents(30))
    tokens = train(tmp_path, vocab_size=300).tokens
    assert tuple(tokens[:5]) == SPECIALS
    letters = [token for token in tokens if len(token) == 1]
    inner = [token for token in tokens if len(token) == 3 and token.startswith("##")]
    start = 5 + len(letters) + len(inner)
    assert tokens[5:start] == sorted(letters) + sorted(inner)
    assert len(tokens) == len(set(tokens)) == 300
    assert all(len(token.removeprefix("##")) > 1 for token in tokens[start:])


def test_a_small_corpus_gives_fewer_entries_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, ["hello world"])
    tokenizer = train(tmp_path, said, vocab_size=30000)
    assert tokenizer.vocab_size < 40
    assert any(f"asked 30,000 entries, got {tokenizer.vocab_size}" in line for line in said)
    assert tokenizer.unk_id not in tokenizer.encode_sentences(["hello world"])[0]


@pytest.mark.parametrize("size", [60, 61, 80, 150, 400])
def test_never_more_entries_than_asked(tmp_path: Path, size: int) -> None:
    put_documents(tmp_path, [LETTERS, *wordy_documents(20)])
    assert train(tmp_path, vocab_size=size).vocab_size <= size


def test_too_small_a_size_is_refused_with_the_least_that_works(tmp_path: Path) -> None:
    put_documents(tmp_path, ["".join(CJK[:500])])
    with pytest.raises(RequestError, match=r"tokenizer.vocab_size: 100 .* needs at least 500") as caught:
        train(tmp_path, vocab_size=100)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "c").glob("tokenizer-*"))
    assert train(tmp_path, vocab_size=500).vocab_size == 500


def test_three_thousand_chinese_letters_are_all_known(tmp_path: Path) -> None:
    text = "".join(CJK)
    put_documents(tmp_path, [text])
    tokenizer = train(tmp_path, vocab_size=8000)
    ids = tokenizer.encode_sentences([text])[0]
    assert len(ids) == 3000
    assert tokenizer.unk_id not in ids


def test_every_known_letter_stands_at_the_start_and_inside_of_words(tmp_path: Path) -> None:
    put_documents(tmp_path, ["Exact tax axis, xylem", LETTERS + " zebra"])
    tokenizer = train(tmp_path, vocab_size=100)
    words = [letter * 2 for letter in LETTERS] + ["texas"]
    assert all(tokenizer.unk_id not in ids for ids in tokenizer.encode_sentences(words))


def test_marks_that_stand_alone_take_no_inner_entry(tmp_path: Path) -> None:
    put_documents(tmp_path, ["one, two. three! 日本 four-five"])
    tokens = train(tmp_path, vocab_size=100).tokens
    assert {",", ".", "!", "-", "日"} <= set(tokens)
    assert not {"##,", "##.", "##!", "##-", "##日"} & set(tokens)


def test_rare_letters_give_way_when_the_alphabet_would_fill_the_vocabulary(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, ["the cat sat on the mat " * 5000 + " ".join(CJK[:60])])
    tokenizer = train(tmp_path, said, vocab_size=90)
    assert "the" in tokenizer.tokens
    assert sum(token[0] >= "一" for token in tokenizer.tokens) < 60
    assert any("rare letters left out" in line for line in said)


def test_long_words_are_not_trained_on_but_counted(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, [f"short words {'x' * 5000} {'y' * 101} {'z' * 100} {'z' * 100}"])
    tokenizer = train(tmp_path, said, vocab_size=1000)
    assert max(map(len, tokenizer.tokens)) <= 102
    assert any("2 words of more than 100 letters" in line for line in said)
    short, long = tokenizer.encode_sentences(["z" * 100, "z" * 101])
    assert tokenizer.unk_id not in short
    assert long == [tokenizer.unk_id]


def test_no_entry_is_empty_or_holds_a_line_break(tmp_path: Path) -> None:
    breaks = "".join(f"a{chr(c)}b " for c in (0x85, 0x2028, 0x2029, 0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0xA0, 0x3000)) * 3
    put_documents(tmp_path, [breaks + "\u200b \ufeff \ufffd word word"])
    result = train_tokenizer(make_config(tmp_path), say=quiet, progress=False)
    text = (result.directory / "vocab.txt").read_bytes().decode()
    tokens = load_tokenizer(result.directory).tokens
    assert text.split("\n")[:-1] == text.splitlines() == tokens
    assert all(token.strip() == token != "" for token in tokens)


def test_sampling_takes_whole_documents_by_the_seed_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    documents = wordy_documents(80)
    put_documents(tmp_path, documents)
    half = sum(len(text.encode()) for text in documents) // 2
    results = {}
    for seed in (0, 0, 1):
        config = make_config(tmp_path, tokenizer={"sample_bytes": half, "seed": seed})
        counts = train_tokenizer(config, overwrite=True, say=said.append, progress=False).manifest["counts"]
        assert results.setdefault(seed, counts) == counts
        assert counts["documents"] == 80
        assert 0.5 * half < counts["used_bytes"] <= half
    assert results[0] != results[1]
    assert any("of 80 documents, chosen by tokenizer.seed 1" in line for line in said)


def test_unknown_share_of_the_training_text_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, [f"{'word ' * 50}{'x' * 101}"])
    result = train_tokenizer(make_config(tmp_path), say=said.append, progress=False)
    assert result.manifest["counts"]["unknown_share"] == 1 / 51
    assert any("2.0% of the words will be [UNK]" in line for line in said)
    assert any("(peak memory " in line for line in said) == (peak_memory() is not None)


def test_documents_without_words_are_refused(tmp_path: Path) -> None:
    put_documents(tmp_path, ["\u200b"])
    with pytest.raises(RequestError, match="no words in 1 training documents"):
        train(tmp_path)


# --- encoding -------------------------------------------------------------------------------------------------


def test_literal_specials_in_text_are_words(tmp_path: Path) -> None:
    put_documents(tmp_path, ["[SEP] [MASK] [CLS] [PAD] [UNK] sep mask cls pad unk"] * 3)
    tokenizer = train(tmp_path)
    ids = tokenizer.encode_sentences(["this is [SEP] a[MASK]b [CLS][PAD] [UNK]", "sep mask cls pad unk [ ]"])
    special = set(tokenizer.special_ids.values()) - {tokenizer.unk_id}
    assert not special & set(ids[0])
    assert tokenizer.unk_id not in ids[1]


def test_only_the_mask_is_special_in_fill_mask_text() -> None:
    tokenizer = small(["a", "b", "[", "]", "sep"])
    ids = tokenizer.encode_with_mask("a [MASK] b[MASK] [SEP]")
    assert [tokenizer.token(i) for i in ids] == ["a", "[MASK]", "b", "[MASK]", "[", "sep", "]"]
    assert tokenizer.encode_with_mask("[MASK]") == [tokenizer.mask_id]
    assert tokenizer.encode_with_mask("") == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.sampled_from([True, False]))
def test_encoding_equals_the_library_on_any_text(text: str, lowercase: bool) -> None:
    flags = Normalising(lowercase=lowercase, strip_accents=lowercase)
    backend = build([*SPECIALS, *LETTERS, *("##" + letter for letter in LETTERS), "é", "the", "[", "]"], flags)
    tokenizer = WordPieceTokenizer(backend)
    expected = backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_sentences([text, text]) == [expected, expected]


def test_encoding_equals_the_library_around_every_code_point() -> None:
    backend = build([*SPECIALS, "a", "b", "##a", "##b"], Normalising())
    tokenizer = WordPieceTokenizer(backend)
    points = [
        chr(c) for c in range(0x110000) if unicodedata.category(chr(c))[0] in "CZPMS" and not 0xD800 <= c < 0xE000
    ]
    texts = [f"a{point}b {point}" for point in points if ord(point) < 0x20000 or ord(point) % 4099 == 0]
    expected = [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    assert tokenizer.encode_sentences(texts) == expected


def test_text_without_pieces_and_lone_surrogates_are_accepted() -> None:
    tokenizer = small(["istanbul"])
    assert tokenizer.encode_sentences(["", " \u200b \t", "istanbul \u200b istanbul", "istanbul\ud800"]) == [
        [],
        [],
        [5, 5],
        [5],
    ]
    assert count_words(["a\udc00b"], Normalising()).words == {"ab": 1}


def test_a_full_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small(["a", "b", "##a", "##b"])
    monkeypatch.setattr("bertpt.data.tokenizer.wordpiece._CACHE_ENTRIES", 1)
    sentences = ["ab ba", "ab c", "a b ba", "ab"]
    assert [tokenizer.encode_sentences([s])[0] for s in sentences] == tokenizer.encode_sentences(sentences)


def test_accents_and_case_follow_the_flags() -> None:
    tokens = ["naive", "ze", "naïve", "że", "Café", "cafe"]

    def pieces(lowercase: bool, strip_accents: bool) -> list[str]:
        tokenizer = small(tokens, Normalising(lowercase, strip_accents))
        return [tokenizer.token(i) for i in tokenizer.encode_sentences(["naïve że Café"])[0]]

    assert pieces(True, True) == ["naive", "ze", "cafe"]
    assert pieces(False, False) == ["naïve", "że", "Café"]
    assert pieces(True, False) == ["naïve", "że", "[UNK]"]


def test_continuing_pieces_and_decoding() -> None:
    tokenizer = small(["play", "##ing", "##", "#", "."])
    assert tokenizer.continues_word.tolist() == [False] * 6 + [True] + [False] * 3
    assert tokenizer.decode([tokenizer.cls_id, 5, 6, 9, tokenizer.mask_id]) == "[CLS] playing. [MASK]"


# --- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_fresh_process_and_transformers_read_the_same_tokenizer(tmp_path: Path, lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers")
    texts = [*wordy_documents(20), "Café naïve że ÀÉ 日本 a\u200bb un cafe\u0301 noir İstanbul"]
    put_documents(tmp_path, texts)
    config = make_config(tmp_path, tokenizer={"vocab_size": 500, "lowercase": lowercase})
    directory = train_tokenizer(config, say=quiet, progress=False).directory
    ours = load_tokenizer(directory).encode_sentences(texts)
    theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
    assert theirs(texts, add_special_tokens=False)["input_ids"] == ours
    pair = theirs("be", "da")
    assert (pair["input_ids"][0], pair["input_ids"][-1]) == (theirs.cls_token_id, theirs.sep_token_id)
    assert (theirs.cls_token_id, theirs.pad_token_id) == (2, 0)
    code = (
        "import json, sys; from pathlib import Path; from bertpt.data.tokenizer.wordpiece import load_tokenizer;"
        "print(json.dumps(load_tokenizer(Path(sys.argv[1])).encode_sentences(json.loads(sys.argv[2]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory), json.dumps(texts)], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == ours


def test_flags_are_written_out_explicitly(tmp_path: Path) -> None:
    save(tmp_path, [*SPECIALS, "a"], Normalising(lowercase=False, strip_accents=False, handle_chinese_chars=False))
    settings_ = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings_["do_lower_case"] is settings_["strip_accents"] is settings_["tokenize_chinese_chars"] is False
    assert json.loads((tmp_path / "tokenizer.json").read_text())["normalizer"]["strip_accents"] is False
    assert set(json.loads((tmp_path / "special_tokens_map.json").read_text()).values()) == set(SPECIALS)


def test_a_second_run_is_skipped_and_new_settings_or_text_make_another_folder(tmp_path: Path) -> None:
    put_documents(tmp_path, wordy_documents(10))
    config = make_config(tmp_path)
    first = train_tokenizer(config, say=quiet, progress=False)
    again = train_tokenizer(config, say=quiet, progress=False)
    assert (first.skipped, again.skipped) == (False, True)
    assert again.directory == first.directory
    other = train_tokenizer(make_config(tmp_path, tokenizer={"vocab_size": 201}), say=quiet, progress=False)
    put_documents(tmp_path, wordy_documents(10, seed=1))
    third = train_tokenizer(config, say=quiet, progress=False)
    assert len({first.directory, other.directory, third.directory}) == 3


def test_missing_documents_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="bertpt download"):
        train(tmp_path)


def test_missing_or_damaged_tokenizer_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="bertpt train-tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(RequestError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_panic_of_the_library_is_one_line() -> None:
    class PanicException(BaseException):
        pass

    one_line = r"^training: the tokenizers library failed: called unwrap on None$"
    with pytest.raises(BertptError, match=one_line), library_faults("training"):
        raise PanicException("called unwrap\non None")
    with pytest.raises(KeyboardInterrupt), library_faults("training"):
        raise KeyboardInterrupt


# --- given vocabularies ---------------------------------------------------------------------------------------

GIVEN = ["a", "##b", *SPECIALS[1:], "[unused0]", SPECIALS[0], "Café", "b", "cafe"]  # [PAD] is id 7


def test_a_given_vocab_file_keeps_its_ids(tmp_path: Path) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_bytes("\r\n".join(GIVEN).encode())
    tokenizer = train(tmp_path, **{"from": str(vocab)})
    assert tokenizer.tokens == GIVEN
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id) == (7, 2, 5)
    assert tokenizer.encode_sentences(["ab Café x [PAD]"]) == [[0, 1, 10, 2, 2, 2, 2]]
    cased = train(tmp_path, **{"from": str(vocab), "lowercase": False})
    assert cased.encode_sentences(["ab Café"]) == [[0, 1, 8]]


def test_a_given_folder_brings_its_flags(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "vocab.txt").write_text("\n".join(GIVEN) + "\n", encoding="utf-8")
    (old / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert train(tmp_path, **{"from": str(old)}).encode_sentences(["ab Café"]) == [[0, 1, 8]]
    full = tmp_path / "full"
    full.mkdir()
    save(full, GIVEN, Normalising(lowercase=False, strip_accents=False))
    given_full = train(tmp_path, **{"from": str(full)})
    assert given_full.encode_sentences(["ab Café"]) == [[0, 1, 8]]
    assert given_full.pad_id == 7


def test_a_folder_that_transformers_saved_is_taken(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save(tmp_path / "first", GIVEN, Normalising())
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "first"))
    theirs.save_pretrained(str(tmp_path / "second"))
    ours = train(tmp_path, **{"from": str(tmp_path / "second")})
    assert ours.tokens == GIVEN
    assert theirs("ab Café b")["input_ids"] == [ours.cls_id, *ours.encode_sentences(["ab Café b"])[0], ours.sep_id]


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["a", *SPECIALS[:4]], r"lacks \[MASK\]"),
        (["a", "b"], r"lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        ([*SPECIALS, "a", "", "b"], "line 7: empty line"),
        ([*SPECIALS, "a", "b", "a"], "line 8: 'a' stands on line 6 too"),
    ],
)
def test_faulty_vocab_files_are_refused_in_one_line(tmp_path: Path, lines: list[str], fault: str) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(lines) + "\n")
    with pytest.raises(RequestError, match=fault) as caught:
        train(tmp_path, **{"from": str(vocab)})
    assert str(caught.value).startswith(str(vocab))
    assert "\n" not in str(caught.value)


def test_a_given_path_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file or folder"):
        train(tmp_path, **{"from": str(tmp_path / "none")})
    with pytest.raises(RequestError, match=r"neither tokenizer\.json nor vocab\.txt"):
        train(tmp_path, **{"from": str(tmp_path)})


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    save(tmp_path, [*SPECIALS, "a"], Normalising())
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text())
    state["pre_tokenizer"] = {"type": "Whitespace"}
    path.write_text(json.dumps(state))
    with pytest.raises(RequestError, match=r"pre_tokenizer.type is 'Whitespace', only 'BertPreTokenizer'"):
        train(tmp_path, **{"from": str(tmp_path)})


def test_cased_entries_under_lower_casing_are_pointed_out(tmp_path: Path) -> None:
    said: list[str] = []
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIALS, *(f"Word{i}" for i in range(200))]) + "\n")
    train(tmp_path, said, **{"from": str(vocab)})
    assert any("200 entries have capitals" in line for line in said)


@pytest.mark.skipif(not LM_SOTU.is_dir(), reason="../shared/data/lm_sotu is not beside the repository")
def test_real_speeches_have_no_unknown_word(tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(LM_SOTU.glob("19*.txt"))[:20]]
    put_documents(tmp_path, texts)
    tokenizer = train(tmp_path, vocab_size=2000)
    assert tokenizer.vocab_size == 2000
    assert {"government", "congress", "##ing"} <= set(tokenizer.tokens)
    assert all(tokenizer.unk_id not in ids for ids in tokenizer.encode_sentences(texts))

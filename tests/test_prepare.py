"""The prepare stage: documents to a token store."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stage_helpers import LM_SOTU, make_config, put_documents, wordy_documents
from tokenizers import Tokenizer

from bertpt.config import Config
from bertpt.data.corpus.documents import Document, iter_documents
from bertpt.data.locate import finished_store, store_dir, tokenizer_dir
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens import encode
from bertpt.data.tokens.paircheck import check_pairs, pair_faults
from bertpt.data.tokens.prepare import prepare
from bertpt.data.tokens.sentences import split_sentences
from bertpt.data.tokens.store import Tokens, TokenStore
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.errors import RequestError


def quiet(_: str) -> None:
    pass


def stages(data_dir: Path, said: list[str] | None = None, **sections: Any) -> TokenStore:
    config = make_config(data_dir, **sections)
    train_tokenizer(config, say=quiet, progress=False)
    return TokenStore.open(prepare(config, say=quiet if said is None else said.append, progress=False).directory)


def as_lists(split: Tokens) -> list[list[list[int]]]:
    """Documents of sentences of ids."""
    starts = split.sentence_offsets()
    return [
        [split.ids[starts[s] : starts[s + 1]].tolist() for s in range(first, end)]
        for first, end in pairwise(split.documents.tolist())
    ]


def brute_force(config: Config, split: str) -> list[list[list[int]]]:
    """The same by the library's tokenizer, one sentence at a time."""
    backend = Tokenizer.from_file(str(tokenizer_dir(config) / "tokenizer.json"))
    backend.encode_special_tokens = True
    documents = iter_documents(Path(config.data_dir) / "c" / "documents", split)
    found = [
        [
            backend.encode(sentence, add_special_tokens=False).ids
            for sentence in split_sentences(document.text, config.corpus.language, config.corpus.sentences)
        ]
        for document in documents
    ]
    found = [[ids for ids in sentences if ids] for sentences in found]
    return [sentences for sentences in found if len(sentences) >= config.corpus.min_sentences]


MIXED = [
    *wordy_documents(25),
    "One sentence only.",
    "\u200b",
    "Two here. \u200b! [SEP] stays text.\n[MASK]",
    "日本語。 Ünïcode, e.g. this. Next",
]


@pytest.mark.parametrize("mode", ["split", "lines"])
@pytest.mark.parametrize("min_sentences", [1, 3])
@pytest.mark.parametrize("letters", [50, 4_000_000])
def test_the_store_equals_encoding_sentence_by_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, min_sentences: int, letters: int
) -> None:
    monkeypatch.setattr(encode, "BATCH_LETTERS", letters)
    monkeypatch.setattr(encode, "SLICE_SENTENCES", 7)
    put_documents(tmp_path, MIXED, wordy_documents(9, seed=1))
    corpus = {"sentences": mode, "min_sentences": min_sentences}
    store = stages(tmp_path, corpus=corpus)
    config = make_config(tmp_path, corpus=corpus)
    train, heldout = brute_force(config, "train"), brute_force(config, "heldout")
    assert as_lists(store.train) == train
    assert as_lists(store.heldout) == heldout
    flat = [i for document in train for sentence in document for i in sentence]
    assert store.unigram.tolist() == np.bincount(flat, minlength=store.vocab_size).tolist()
    tokens = (tokenizer_dir(config) / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert store.continues_word.tolist() == [token.startswith("##") and token != "##" for token in tokens]
    assert store.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def test_special_ids_never_come_out_of_text(tmp_path: Path) -> None:
    put_documents(tmp_path, ["[CLS] a [SEP] b [MASK] c [PAD]. [SEP][SEP]"] * 3)
    store = stages(tmp_path)
    assert not set(store.train.ids.tolist()) & {0, 2, 3, 4}


def test_sources_are_kept_by_document(tmp_path: Path) -> None:
    documents = [Document(f"Text {i}. More.", "news" if i % 3 else "books", str(i)) for i in range(9)]
    put_documents(tmp_path, documents)
    store = stages(tmp_path)
    assert [store.source_labels[i] for i in store.train.sources] == [document.source for document in documents]
    assert store.manifest["counts"]["train"]["documents_by_source"] == {"books": 3, "news": 6}


def test_what_is_dropped_is_counted_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    texts = [
        *wordy_documents(5),
        "Alone.",
        "\u200b. Fine here",
        f"\u200b\nlong {'x' * 101} word. {'y' * 150}",
        "\u200b",
    ]
    put_documents(tmp_path, texts)
    store = stages(tmp_path, said, corpus={"min_sentences": 2})
    counts = store.manifest["counts"]["train"]
    assert counts["documents_read"] == 9
    assert counts["documents"] == len(store.train.documents) - 1 == 6
    assert counts["documents_too_short"] == 3
    assert counts["sentences_without_pieces"] == 2
    assert counts["words_over_100_letters"] == counts["unknown_tokens"] == 2
    assert counts["top_unknown_words"] == {"x" * 101: 1, "y" * 150: 1}
    assert counts["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert counts["tokens"] == len(store.train.ids)
    assert any("3 documents too short" in line and "2 words over 100 letters" in line for line in said)


def test_overlong_sentences_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_documents(tmp_path, ["la " * 25, "la la. " + "la " * 10, "la " * 11 + "\nla"])
    monkeypatch.setattr(encode, "MAX_SENTENCE", 10)
    store = stages(tmp_path, corpus={"sentences": "lines"})
    assert [[len(sentence) for sentence in document] for document in as_lists(store.train)] == [
        [10, 10, 5],
        [10, 3],
        [10, 1, 1],
    ]
    assert store.manifest["counts"]["train"]["sentences_cut"] == 3


def test_many_unknown_words_are_pointed_out(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, ["plain text here. and more of it."] * 3)
    config = make_config(tmp_path, tokenizer={"from": str(tmp_path / "given")})
    given = tmp_path / "given"
    given.mkdir()
    (given / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplain\n.\nand\n")
    train_tokenizer(config, say=quiet, progress=False)
    prepare(config, say=said.append, progress=False)
    assert any("55.6% of the words are [UNK] (most often here, it, more, of, text)" in line for line in said)


def test_one_sentence_documents_name_the_likely_cause(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, ["A.", "B.", "C."])
    store = stages(tmp_path, said)
    assert any("3 of 3 documents have one sentence" in line and "blank line" in line for line in said)
    with pytest.raises(RequestError, match=r"3 documents, each of one sentence.*pairs\.rule: none"):
        check_pairs(store.manifest, "next")
    check_pairs(store.manifest, "none")


def test_pairs_of_one_document_are_refused_with_the_way_out(tmp_path: Path) -> None:
    said: list[str] = []
    put_documents(tmp_path, ["hello\ntom sawyer\nhow are you"], wordy_documents(3))
    store = stages(tmp_path, said)
    faults = pair_faults(store.manifest, "next")
    assert len(faults) == 1
    assert faults[0].startswith("pairs.rule: next cannot be made: train has 1 document;")
    assert "pairs.rule: none" in faults[0]
    assert faults[0] in "\n".join(said)
    assert not pair_faults(store.manifest, "none")


def test_text_that_is_all_unknown_is_refused_for_training(tmp_path: Path) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "q"]))
    put_documents(tmp_path, ["Nothing fits. Here.", "Nor there. At all."])
    said: list[str] = []
    store = stages(tmp_path, said, tokenizer={"from": str(vocab)})
    faults = pair_faults(store.manifest, "none")
    assert [fault.split(":")[0] for fault in faults] == ["train", "heldout"]
    assert "tokens are [UNK], so there is nothing to predict" in faults[0]
    assert any("nothing to predict" in line for line in said)


def test_two_documents_are_enough_for_pairs(tmp_path: Path) -> None:
    put_documents(tmp_path, ["One. Two.", "Three."])
    assert not pair_faults(stages(tmp_path).manifest, "next")


def test_no_documents_left_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    put_documents(tmp_path, ["One. Two.", "Three. Four."])
    config = make_config(tmp_path, corpus={"min_sentences": 5})
    train_tokenizer(config, say=quiet, progress=False)
    with pytest.raises(RequestError, match="none of 2 train documents has 5 sentences"):
        prepare(config, say=quiet, progress=False)
    assert not list((tmp_path / "c").glob("*tokens*"))


def test_missing_stages_name_their_commands(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with pytest.raises(RequestError, match="bertpt download"):
        prepare(config)
    put_documents(tmp_path, ["One. Two.", "Three."])
    with pytest.raises(RequestError, match="bertpt train-tokenizer"):
        prepare(config)
    train_tokenizer(config, say=quiet, progress=False)
    with pytest.raises(RequestError, match="bertpt prepare"):
        finished_store(config)


def test_a_second_run_is_skipped_with_one_line(tmp_path: Path) -> None:
    put_documents(tmp_path, wordy_documents(5))
    said: list[str] = []
    store = stages(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in store.directory.iterdir()}
    stages(tmp_path, said)
    assert len(said) == 1
    assert "up to date" in said[0]
    assert {path: path.stat().st_mtime_ns for path in store.directory.iterdir()} == written


def test_a_changed_tokenizer_corpus_or_setting_is_never_served_an_old_store(tmp_path: Path) -> None:
    put_documents(tmp_path, wordy_documents(5))
    folders = {stages(tmp_path).directory}
    folders.add(stages(tmp_path, tokenizer={"vocab_size": 150}).directory)
    folders.add(stages(tmp_path, corpus={"min_sentences": 2}).directory)
    folders.add(stages(tmp_path, corpus={"sentences": "lines"}).directory)
    assert len(folders) == 4
    config = make_config(tmp_path)
    vocab = tmp_path / "vocab.txt"
    vocab.write_bytes((tokenizer_dir(config) / "vocab.txt").read_bytes())
    given = {"from": str(vocab)}
    assert stages(tmp_path, tokenizer=given).manifest["inputs"] == stages(tmp_path).manifest["inputs"]
    vocab.write_bytes(vocab.read_bytes() + b"more\n")
    folders.add(stages(tmp_path, tokenizer=given).directory)
    put_documents(tmp_path, wordy_documents(6))
    with pytest.raises(RequestError, match="bertpt train-tokenizer"):
        store_dir(config)
    folders.add(stages(tmp_path).directory)
    assert len(folders) == 6


def test_a_truncated_store_is_refused(tmp_path: Path) -> None:
    put_documents(tmp_path, wordy_documents(5))
    store = stages(tmp_path)
    path = store.directory / "train.ids.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(RequestError, match=r"train\.ids\.bin.*the manifest says"):
        stages(tmp_path)


def test_an_unknown_language_is_refused_before_any_work(tmp_path: Path) -> None:
    put_documents(tmp_path, wordy_documents(5))
    with pytest.raises(RequestError, match="did you mean en"):
        stages(tmp_path, corpus={"language": "english"})
    stages(tmp_path, corpus={"language": "english", "sentences": "lines"})


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_ids_of_large_vocabularies(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    ids: NDArray[np.int64] = np.array([5, vocab_size - 1, 7], np.int64)
    ones = np.ones(1, np.int64)
    with StoreWriter(tmp_path, np.zeros(vocab_size, np.bool_)) as writer:
        writer.split("train").add(ids, 3 * ones, ones, np.zeros(1, np.uint8))
    written = np.fromfile(tmp_path / "train.ids.bin", np.dtype(dtype).newbyteorder("<"))
    assert written.tolist() == ids.tolist()
    assert np.fromfile(tmp_path / "heldout.documents.bin", "<i8").tolist() == [0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    code = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stage_helpers import make_config
from bertpt.data.tokens import encode
from bertpt.data.tokens.prepare import prepare
from bertpt.data.tokenizer.training import train_tokenizer
encode.BATCH_LETTERS = 1_000_000
config = make_config(Path(sys.argv[1]))
train_tokenizer(config, progress=False)
prepare(config, progress=False)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
    text = "\n".join(wordy_documents(40) * 8)
    peaks = {}
    for copies in (25, 125):
        put_documents(tmp_path / str(copies), [f"{text}\n{i}" for i in range(copies)], [text])
        arguments = [str(tmp_path / str(copies)), str(Path(__file__).parent)]
        done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
        peaks[copies] = int(done.stdout) / 1024
    added = 100 * len(text.encode()) / 2**20
    assert peaks[125] - peaks[25] < 0.5 * added, (peaks, added)


@pytest.mark.skipif(not LM_SOTU.is_dir(), reason="../shared/data/lm_sotu is not beside the repository")
def test_a_store_of_english_is_at_most_half_its_text(tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(LM_SOTU.glob("19[0-4]*.txt"))]
    put_documents(tmp_path, texts[8:], texts[:8])
    store = stages(tmp_path, tokenizer={"vocab_size": 8192})
    counts = store.manifest["counts"]
    size = sum(path.stat().st_size for path in store.directory.iterdir())
    assert size < 0.5 * sum(counts[split]["text_bytes"] for split in ("train", "heldout"))
    assert counts["train"]["unknown_tokens"] == 0
    assert counts["heldout"]["unknown_share"] < 0.001
    assert 1.0 < counts["train"]["tokens_per_word"] < 1.3
    assert json.loads((store.directory / "manifest.json").read_text())["settings"]["dtype"] == "uint16"

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stage_helpers import wordy_documents

from bertpt.config.schema import Config
from bertpt.data.corpus.documents import iter_documents
from bertpt.data.corpus.download import download
from bertpt.data.corpus.near_duplicates import DocumentIndex, bands_for, shingles, words_of
from bertpt.data.stage import StageResult
from bertpt.errors import RequestError


def settings(tmp_path: Path, **corpus: Any) -> Config:
    source = {"kind": "files", "path": str(tmp_path / "text.txt"), "documents": "blank-line"}
    return Config.model_validate(
        {
            "name": "x",
            "data_dir": str(tmp_path / "data"),
            "corpus": {"name": "c", "sources": [source], **corpus},
            "train": {"phases": [{"steps": 1}]},
        }
    )


def put(tmp_path: Path, documents: list[str], name: str = "text.txt") -> Path:
    path = tmp_path / name
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def make(config: Config, said: list[str] | None = None, **options: Any) -> StageResult:
    return download(config, say=(said if said is not None else []).append, progress=False, **options)


def texts(result: StageResult, split: str) -> list[str]:
    return [document.text for document in iter_documents(result.directory, split)]


def plain_jaccard(a: str, b: str) -> float:
    """By definition, over sets of tuples: no hash, no signature."""

    def grams(text: str) -> set[tuple[str, ...]]:
        letters = "".join(c if c.isalnum() else " " for c in text.lower())
        words = letters.split()
        return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))}

    left, right = grams(a), grams(b)
    return len(left & right) / len(left | right)


def disturbed(text: str, changes: int, draw: random.Random) -> str:
    """The text with that many words exchanged, dropped or doubled."""
    words = text.split(" ")
    for _ in range(changes):
        place = draw.randrange(len(words))
        words[place : place + 1] = draw.choice([["other"], [], [words[place]] * 2])
    return " ".join(words)


def test_what_is_found_is_what_the_definition_says(tmp_path: Path) -> None:
    draw = random.Random(0)
    heldout = [text.replace("\n", " ") for text in wordy_documents(30, seed=1)]
    train = [disturbed(draw.choice(heldout), draw.randint(0, 12), draw) for _ in range(400)]
    for threshold in (0.5, 0.8, 0.95):
        index = DocumentIndex(threshold, tmp_path / "hashes")
        for text in heldout:
            index.add(text)
        expected = [max(plain_jaccard(text, other) for other in heldout) >= threshold for text in train]
        assert [index.resembles(text) for text in train] == expected
        assert 20 < sum(expected) < 380


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_a_pair_at_the_threshold_is_hardly_ever_missed(threshold: float) -> None:
    bands = bands_for(threshold)
    assert 128 % bands == 0
    assert (1 - threshold ** (128 // bands)) ** bands <= 1e-3


def test_case_punctuation_and_line_ends_make_no_difference() -> None:
    assert words_of("The Cat, sat “on” the\nmat… ÄRGER!") == [
        word.encode() for word in ("the", "cat", "sat", "on", "the", "mat", "ärger")
    ]
    assert shingles("The cat; sat on\nTHE mat.") == [b"the cat sat on the", b"cat sat on the mat"]


def test_scripts_without_spaces_are_compared_letter_by_letter(tmp_path: Path) -> None:
    index = DocumentIndex(0.8, tmp_path / "hashes")
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 100)))
    index.add(text + "。")
    assert index.resembles(text[:-1] + "一")
    assert not index.resembles(text[:50] + text[60:10:-1])


def test_short_and_wordless_texts_are_no_trouble(tmp_path: Path) -> None:
    index = DocumentIndex(0.8, tmp_path / "hashes")
    for text in ("", "...", "one", "Two words"):
        index.add(text)
    assert len(index) == 2
    assert [index.resembles(text) for text in ("", "---", "ONE.", "two, words", "two word")] == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_near_duplicates_of_heldout_documents_leave_training_and_are_counted(tmp_path: Path) -> None:
    draw = random.Random(1)
    documents = wordy_documents(80, seed=2)
    own = put(tmp_path, documents[:10], "heldout.txt")
    near = [disturbed(text, 1, draw) for text in documents[:6]]
    far = [disturbed(text, 60, draw) for text in documents[:6]]
    put(tmp_path, documents[10:] + near + far + documents[:1])
    source = {"kind": "files", "path": str(tmp_path / "text.txt"), "documents": "blank-line", "validation": str(own)}
    said: list[str] = []
    done = make(settings(tmp_path, sources=[source]), said)
    counts = done.manifest["counts"]["sources"]["text"]
    assert texts(done, "heldout") == documents[:10]
    assert texts(done, "train") == documents[10:] + far
    assert (counts["near_duplicates"], counts["overlap"], counts["documents"]) == (6, 1, 76)
    assert any("6 near-duplicates of held-out documents dropped from training" in line for line in said)
    assert not [path for path in done.directory.iterdir() if path.suffix not in (".parquet", ".json")]

    kept = make(settings(tmp_path, sources=[source], heldout={"near_duplicates": None}, name="all"))
    assert texts(kept, "train") == documents[10:] + near + far
    assert "near_duplicates" not in kept.manifest["counts"]["sources"]["text"]


def test_zero_and_null_are_the_same_setting_and_others_make_the_documents_again(tmp_path: Path) -> None:
    put(tmp_path, wordy_documents(40))
    make(settings(tmp_path, heldout={"near_duplicates": 0}))
    assert make(settings(tmp_path, heldout={"near_duplicates": None})).skipped
    with pytest.raises(RequestError, match=r"corpus\.heldout\.near_duplicates: None -> 0\.8"):
        make(settings(tmp_path))
    with pytest.raises(RequestError, match=r"corpus\.deduplicate: 'none' -> 'documents'"):
        make(settings(tmp_path, heldout={"near_duplicates": 0}, deduplicate="documents"))


def test_without_near_duplicates_the_documents_are_those_of_the_check_turned_off(tmp_path: Path) -> None:
    put(tmp_path, wordy_documents(60))
    on = make(settings(tmp_path, name="on"))
    off = make(settings(tmp_path, name="off", heldout={"near_duplicates": 0}))
    assert on.manifest["fingerprint"] == off.manifest["fingerprint"]
    assert on.manifest["key"] != off.manifest["key"]


def test_nothing_left_names_the_setting(tmp_path: Path) -> None:
    draw = random.Random(2)
    documents = wordy_documents(10)
    own = put(tmp_path, documents, "heldout.txt")
    put(tmp_path, [disturbed(text, 1, draw) for text in documents])
    source = {"kind": "files", "path": str(tmp_path / "text.txt"), "documents": "blank-line", "validation": str(own)}
    with pytest.raises(RequestError, match=r"nearly so \(10; corpus\.heldout\.near_duplicates\)"):
        make(settings(tmp_path, sources=[source]))
    assert not (tmp_path / "data").exists()


def test_copies_within_training_go_by_option_all_but_the_first_of_all_sources(tmp_path: Path) -> None:
    documents = wordy_documents(60)
    put(tmp_path, documents + documents[:30])
    put(tmp_path, documents[20:40], "more.txt")
    sources = [
        {"kind": "files", "path": str(tmp_path / name), "documents": "blank-line"} for name in ("text.txt", "more.txt")
    ]
    kept = make(settings(tmp_path, sources=sources, name="kept"))
    once = make(settings(tmp_path, sources=sources, name="once", deduplicate="documents"))
    assert texts(once, "train") == list(dict.fromkeys(texts(kept, "train")))
    assert texts(once, "heldout") == texts(kept, "heldout")
    dropped = sum(source["copies_dropped"] for source in once.manifest["counts"]["sources"].values())
    assert dropped == len(texts(kept, "train")) - len(texts(once, "train")) > 0
    for made in (kept, once):
        assert made.manifest["counts"]["sources"]["text"]["duplicates"] == 30


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    draw = random.Random(3)
    heldout = wordy_documents(5)
    others = [disturbed(text, changes, draw) for text in heldout for changes in range(0, 40, 2)]
    index = DocumentIndex(0.5, tmp_path / "here")
    for text in heldout:
        index.add(text)
    (tmp_path / "texts.json").write_text(json.dumps([heldout, others]), encoding="utf-8")
    code = (
        "import json, pathlib, sys; from bertpt.data.corpus.near_duplicates import DocumentIndex\n"
        "heldout, others = json.loads(pathlib.Path(sys.argv[1], 'texts.json').read_text(encoding='utf-8'))\n"
        "index = DocumentIndex(0.5, pathlib.Path(sys.argv[1], 'there'))\n"
        "[index.add(text) for text in heldout]\n"
        "print(json.dumps([index.resembles(text) for text in others]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [index.resembles(text) for text in others]

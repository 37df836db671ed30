"""Near-duplicates within training, lines of many documents, lengths: what leaves, what stays, what is said."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stage_helpers import wordy_documents
from test_download import both, config, counts, make, put
from test_near_duplicates import disturbed, plain_jaccard

from bertpt.data.corpus import boilerplate
from bertpt.data.corpus.boilerplate import repeated_lines
from bertpt.data.corpus.documents import Document, DocumentWriter
from bertpt.data.corpus.gather import FrequentLines
from bertpt.data.inspect.corpus import inspect_corpus
from bertpt.errors import RequestError

MENU = ["Home | News | Contact", "Share this"]


def written(tmp_path: Path, documents: list[str], name: str = "t.txt") -> Path:
    return put(tmp_path / name, "\n\n".join(documents) + "\n")


def texts(result: Any) -> list[str]:
    return sorted(document.text for split in both(result) for document in split)


# --- near-duplicates within training -----------------------------------------------------------------------------


def test_of_training_documents_that_nearly_repeat_another_the_first_stays(tmp_path: Path) -> None:
    draw = random.Random(1)
    documents = wordy_documents(60, seed=2)
    near = [disturbed(text, 1, draw) for text in documents[:12]]
    far = [disturbed(text, 60, draw) for text in documents[:12]]
    path = written(tmp_path, documents + near + far + documents[20:24])
    nothing = {"near_duplicates": 0}
    said: list[str] = []
    result = make(config(tmp_path, path, deduplicate="near-duplicates", heldout=nothing), said)
    train, heldout = both(result)
    kept = [document.text for document in train]
    # By the definition, without an index: each against all that were kept before it.
    all_train = [text for text in documents + near + far + documents[20:24] if text not in {d.text for d in heldout}]
    expected: list[str] = []
    for text in all_train:
        if all(plain_jaccard(text, other) < 0.8 for other in expected):
            expected.append(text)
    assert kept == expected
    found = counts(result, "t")
    assert found["near_copies_dropped"] + found.get("copies_dropped", 0) == len(all_train) - len(kept) > 8
    assert found["near_copies_dropped"] > 5
    assert any("near-duplicates within the training documents dropped" in line for line in said)
    assert not [p for p in result.directory.iterdir() if p.suffix not in (".parquet", ".json")]
    lax = make(config(tmp_path, path, deduplicate="near-duplicates", similarity=0.2, heldout=nothing, name="d"))
    assert counts(lax, "t")["near_copies_dropped"] > found["near_copies_dropped"]


# --- lines of many documents -------------------------------------------------------------------------------------


def pages(count: int = 40) -> list[str]:
    """Pages with a menu above and a footer that stands twice below; an own line stands twice in one page."""
    return [
        "\n".join([MENU[0], f"This is page {n}.", f"It has number {n}.", f"It has number {n}.", MENU[1], MENU[1]])
        for n in range(count)
    ]


def test_lines_in_more_documents_than_allowed_are_removed_and_nothing_else(tmp_path: Path) -> None:
    extra = ["\n".join(MENU), f"{MENU[0]}\nOne of its own."]
    path = written(tmp_path, pages() + extra)
    said: list[str] = []
    result = make(config(tmp_path, path, max_line_documents=10), said)
    wanted = [f"This is page {n}.\nIt has number {n}.\nIt has number {n}." for n in range(40)]
    assert texts(result) == sorted([*wanted, "One of its own."])
    found = counts(result, "t")
    assert found["boilerplate_lines"] == 40 * 3 + 2 + 1
    assert found["boilerplate_documents"] == 1
    assert found["lines"] == 40 * 3 + 1
    assert result.manifest["counts"]["repeated_lines"] == {"different": 2, "examples": {MENU[0]: 42, MENU[1]: 41}}
    assert any(
        "2 different lines stand in more than 10 documents and were removed, most often 'Home | News | Contact' (42)"
        in line
        for line in said
    )
    assert any("123 lines that stand in more than max_line_documents documents removed" in line for line in said)
    # At the limit they stay; without the option the text is as it was.
    assert texts(make(config(tmp_path, path, max_line_documents=42, name="d"))) == sorted(pages() + extra)
    assert texts(make(config(tmp_path, path, name="e"))) == sorted(pages() + extra)


def test_copies_and_the_split_follow_the_text_that_is_left(tmp_path: Path) -> None:
    # Two copies of each text under another menu: no text may stand on both sides.
    bodies = [f"Text number {n}.\nThe body of {n}." for n in range(60)]
    documents = [f"{menu}\n{body}" for menu in MENU for body in bodies]
    result = make(
        config(tmp_path, written(tmp_path, documents), max_line_documents=5, heldout={"share": 0.3}, min_letters=1)
    )
    train, heldout = ({document.text for document in side} for side in both(result))
    assert train | heldout == set(bodies)
    assert not train & heldout
    assert counts(result, "t")["duplicates"] == 60


def test_the_limit_counts_documents_of_all_sources_and_every_length_rule_holds_afterwards(tmp_path: Path) -> None:
    one = written(tmp_path, [f"{MENU[0]}\nPage {n} of the one." for n in range(20)], "one.txt")
    two = written(tmp_path, [f"{MENU[0]}\nPage {'x' * n}" for n in range(30)], "two.txt")
    result = make(config(tmp_path, one, two, max_line_documents=35, min_letters=12))
    assert counts(result, "one")["documents"] + counts(result, "one")["heldout"] == 20
    assert counts(result, "two")["documents"] + counts(result, "two")["heldout"] == 23
    assert counts(result, "two")["below_min_letters"] == 7  # with the menu they were long enough
    assert not [text for text in texts(result) if MENU[0] in text]


def test_nothing_left_of_a_source_names_the_setting(tmp_path: Path) -> None:
    path = written(tmp_path, ["\n".join(MENU)] * 40)
    with pytest.raises(
        RequestError, match=r"t: no document is left without the lines .*; set corpus\.max_line_documents to more"
    ):
        make(config(tmp_path, path, max_line_documents=3))
    assert not (tmp_path / "data").exists()


def test_the_count_is_exact_however_full_the_table_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    documents = [[f"line {int(draw.paretovariate(0.7)) % 900}" for _ in range(12)] for _ in range(300)]
    with DocumentWriter(tmp_path, "all") as writer:
        for number, lines in enumerate(documents):
            writer.add(Document("\n".join(lines), "s", str(number)))
    expected = Counter(line for lines in documents for line in set(lines))
    for cells in (2**24, 16):
        monkeypatch.setattr(boilerplate, "_CELLS", cells)
        monkeypatch.setattr(boilerplate, "_BATCH", 100)
        found = repeated_lines(writer.shards, 20)
        assert found == {hash(line): count for line, count in expected.items() if count > 20}
        assert len(found) > 3


# --- lengths -----------------------------------------------------------------------------------------------------


def test_documents_outside_the_lengths_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = ["é" * n for n in range(5, 46)]
    result = make(config(tmp_path, written(tmp_path, rows), min_letters=10, max_letters=40))
    assert sorted(map(len, texts(result))) == list(range(10, 41))
    assert (counts(result, "t")["below_min_letters"], counts(result, "t")["above_max_letters"]) == (5, 5)
    with pytest.raises(RequestError, match=r"no documents with text \(0 dropped empty, .* 41 below min letters\)"):
        make(config(tmp_path, written(tmp_path, rows), min_letters=100, name="d"))


# --- what people see ---------------------------------------------------------------------------------------------


def test_inspect_names_lines_of_many_documents_and_what_was_taken_out(tmp_path: Path) -> None:
    path = written(tmp_path, pages())
    plain = config(tmp_path, path)
    make(plain)
    figures = inspect_corpus(plain, progress=False)
    assert figures.frequent_lines == {MENU[0]: 40, MENU[1]: 40}
    assert any("lines in most documents: 'Home | News | Contact' (40)" in line for line in figures.lines())
    cleaned = config(tmp_path, path, max_line_documents=10, name="d")
    make(cleaned)
    figures = inspect_corpus(cleaned, progress=False)
    assert figures.frequent_lines == {}
    assert figures.removed_lines == {MENU[0]: 40, MENU[1]: 40}
    text = "\n".join(figures.lines())
    assert "removed, with the documents they stood in: 'Home | News | Contact' (40), 'Share this' (40)" in text
    assert "120 lines that stand in more than max_line_documents documents removed" in text


def test_frequent_lines_are_kept_in_bounded_memory() -> None:
    lines = FrequentLines(capacity=100)
    for number in range(2000):
        lines.add([f"own {number}", f"other {number}", *(["often"] if number % 4 == 0 else []), "often"])
    found = lines.most(3, 100)
    assert list(found) == ["often"]
    assert 2000 - lines.missed <= found["often"] <= 2000
    assert lines.missed < 2000 * 3 / 50

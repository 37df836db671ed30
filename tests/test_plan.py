"""Planned rows beside a walk over sentences in plain Python, and what every plan must keep to."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from store_helpers import Document, make_store, make_tokens, plain_bits, random_documents

from bertpt.config.schema import Pairs
from bertpt.data.rows import plan
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokens.store import Tokens, TokenStore
from bertpt.errors import RequestError

Row = tuple[int, int, int, int, bool]
LENGTHS = [8, 9, 16, 33, 64, 128, 512]


# --- the twin: one document, one sentence, one token at a time ---------------------------------------------------


class Draws:
    """The random numbers of one row, asked for one by one."""

    def __init__(self, *key: int) -> None:
        self.state = plain_bits(*key)

    def bits(self, *purpose: int) -> int:
        return plain_bits(*purpose, state=self.state)

    def share(self, purpose: int) -> float:
        return (self.bits(purpose) >> 11) / 2**53

    def below(self, bound: int, *purpose: int) -> int:
        return (self.bits(*purpose) >> 32) * bound >> 32

    def coin(self, purpose: int, nth: int) -> bool:
        return bool(self.bits(purpose, nth // 64) >> nth % 64 & 1)


def numbered(documents: list[Document], room: int) -> list[list[list[int]]]:
    """Documents of sentences of offsets; sentences of more than ``room`` tokens cut into halves of a row."""
    offset, half, found = 0, -(-room // 2), []
    for document in documents:
        sentences = []
        for sentence in document:
            places = list(range(offset, offset + len(sentence)))
            offset += len(sentence)
            size = half if len(places) > room else len(places)
            sentences += [places[at : at + size] for at in range(0, len(places), size)]
        found.append(sentences)
    return found


def truncate(a: list[int], b: list[int], room: int, draws: Draws) -> None:
    cuts = {plan._CUT_A: 0, plan._CUT_B: 0}
    while len(a) + len(b) > room:
        side, purpose = (a, plan._CUT_A) if len(a) > len(b) else (b, plan._CUT_B)
        side.pop(0 if draws.coin(purpose, cuts[purpose]) else -1)
        cuts[purpose] += 1


def stretches(documents: list[list[list[int]]]) -> Iterator[tuple[int, int, int, int]]:
    """Document, number within it, first sentence and the one after the last, of what is planned side by side."""
    for index, document in enumerate(documents):
        numbers = [(sentence[0] - document[0][0]) // plan.STRETCH for sentence in document]
        for nth in dict.fromkeys(numbers):
            begin = numbers.index(nth)
            yield index, nth, begin, begin + numbers.count(nth)


def joined(sentences: list[list[int]]) -> list[int]:
    return [place for sentence in sentences for place in sentence]


def other_sentences(
    documents: list[list[list[int]]], among: list[int], ids: list[int], rest: list[int], wanted: int, draws: Draws
) -> list[int] | None:
    """B from a random place of another document; None when ten tries gave the text that truly follows."""
    for attempt in range(10):
        document = documents[among[draws.below(len(among), plan._DOCUMENT, attempt)]]
        b: list[int] = []
        for sentence in document[draws.below(len(document), plan._SENTENCE, attempt) :]:
            b += sentence
            if len(b) >= wanted:
                break
        pairs = list(islice(zip(b, rest, strict=False), 16))
        if not pairs or any(ids[x] != ids[y] for x, y in pairs):
            return b
    return None


def walk(documents: list[Document], sources: list[int], pairs: Pairs, length: int, seed: int, epoch: int) -> list[Row]:
    """All rows of an epoch in the order of the plan."""
    room = length - 3
    ids = [token for document in documents for sentence in document for token in sentence]
    places = numbered(documents, room)
    made: list[tuple[int, tuple[int, int], Row]] = []
    for index, nth, begin, stop in stretches(places):
        document = places[index]
        among = [
            d
            for d in range(len(places))
            if d != index and (pairs.random_from == "corpus" or sources[d] == sources[index])
        ]
        turn, i = 0, begin
        chunk: list[list[int]] = []
        while i < stop:
            if not chunk:
                draws = Draws(seed, epoch, index, *([2**48 + nth] if nth else []), turn)
                target = room
                if draws.share(plan._SHORT) < pairs.short_share:
                    target = 2 + draws.below(room - 1, plan._TARGET)
            chunk.append(document[i])
            if i == stop - 1 or len(joined(chunk)) >= target:
                a_end = 1 + draws.below(len(chunk) - 1, plan._SPLIT) if len(chunk) > 1 else 1
                a, b = joined(chunk[:a_end]), joined(chunk[a_end:])
                rest = joined(document[i + 1 - len(chunk) + a_end :])
                is_random = len(chunk) == 1 or draws.share(plan._RANDOM) < pairs.random_share
                if is_random:
                    other = other_sentences(places, among, ids, rest, target - len(a), draws)
                    is_random = other is not None
                    if other is not None:
                        b = other
                        i -= len(chunk) - a_end
                if b:
                    truncate(a, b, room, draws)
                    made.append((turn, (index, nth), (a[0], b[0], len(a), len(b), is_random)))
                chunk, turn = [], turn + 1
            i += 1
    rows = [row for _, _, row in sorted(made)]
    order = sorted(range(len(rows)), key=lambda i: Draws(seed, epoch).bits(plan._ORDER, i))
    return [rows[i] for i in order]


# --- helpers -----------------------------------------------------------------------------------------------------


def plan_of(tokens: Tokens, length: int, *, seed: int = 0, epoch: int = 0, **pairs: Any) -> NDArray[Any]:
    return plan_epoch(tokens, Pairs(**pairs), length=length, seed=seed, epoch=epoch)


def document_of(tokens: Tokens, place: NDArray[np.int64]) -> NDArray[np.int64]:
    owner = np.repeat(np.arange(len(tokens.documents) - 1), np.diff(tokens.document_starts))
    return owner[place]


def visible(tokens: Tokens, row: Any) -> tuple[list[int], list[int]]:
    a, b = int(row["a_start"]), int(row["b_start"])
    return tokens.ids[a : a + row["a_length"]].tolist(), tokens.ids[b : b + row["b_length"]].tolist()


# --- pairs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("seed", "random_from"), [(0, "corpus"), (1, "source"), (99, "corpus"), (2**63, "source")])
def test_rows_are_those_of_a_walk_over_sentences(length: int, seed: int, random_from: str) -> None:
    sources = [0] * 5 + [1] * 2 + [2] * 6
    documents = random_documents(13, seed=seed, sentences=(1, 12 if length < 32 else 25), tokens=(1, 40))
    documents[3] = [*documents[3][:2], list(range(5, 100)) * 7, *documents[3][2:]]  # longer than a row
    documents[8] = documents[9]  # a copy
    pairs = Pairs(random_from=random_from, short_share=0.3)
    tokens = make_tokens(documents, sources)
    rows = plan_epoch(tokens, pairs, length=length, seed=seed, epoch=seed % 3)
    assert rows.tolist() == walk(documents, sources, pairs, length, seed, seed % 3)


@pytest.mark.parametrize("stretch", [1, 7, 60, 200])
def test_huge_documents_are_planned_in_stretches(monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    monkeypatch.setattr(plan, "STRETCH", stretch)
    documents = random_documents(7, seed=stretch, sentences=(1, 40), tokens=(1, 30))
    documents[2] = [[token] for token in range(5, 90)]
    pairs = Pairs(short_share=0.2)
    rows = plan_epoch(make_tokens(documents), pairs, length=33, seed=2, epoch=1)
    assert rows.tolist() == walk(documents, [0] * 7, pairs, 33, 2, 1)
    whole = plan_epoch(make_tokens(documents), Pairs(rule="none"), length=33, seed=2, epoch=1)
    covered = np.sort(np.concatenate([np.arange(r["a_start"], r["a_start"] + r["a_length"]) for r in whole]))
    assert covered.tolist() == list(range(sum(len(sentence) for document in documents for sentence in document)))


@pytest.mark.parametrize("random_share", [0.0, 0.2, 1.0])
def test_the_walk_agrees_for_any_share_of_random_pairs(random_share: float) -> None:
    documents = random_documents(12, seed=5, sentences=(1, 15))
    pairs = Pairs(random_share=random_share, short_share=0.5)
    rows = plan_epoch(make_tokens(documents), pairs, length=40, seed=2, epoch=1)
    assert rows.tolist() == walk(documents, [0] * 12, pairs, 40, 2, 1)


def test_the_walk_agrees_where_most_documents_are_copies() -> None:
    texts = random_documents(2, seed=3, vocab_size=8, sentences=(2, 4), tokens=(1, 3))
    documents = texts * 6 + [[[5], [5], [5]]] * 4
    rows = plan_of(make_tokens(documents), 16, seed=4, short_share=0.2)
    assert rows.tolist() == walk(documents, [0] * 16, Pairs(short_share=0.2), 16, 4, 0)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_row_keeps_to_the_rules(length: int) -> None:
    tokens = make_tokens(random_documents(60, seed=length, sentences=(1, 30), tokens=(1, min(30, length - 3))))
    rows = plan_of(tokens, length, seed=length)
    a, b, a_length, b_length = (rows[name].astype(np.int64) for name in ("a_start", "b_start", "a_length", "b_length"))
    assert a_length.min() >= 1
    assert b_length.min() >= 1
    used = a_length + b_length + 3
    assert used.max() == length  # exactly: no special token is taken off twice
    assert (document_of(tokens, a) == document_of(tokens, a + a_length - 1)).all()
    assert (document_of(tokens, b) == document_of(tokens, b + b_length - 1)).all()
    same = document_of(tokens, a) == document_of(tokens, b)
    assert (same == ~rows["is_random"]).all()
    gap = (b - a - a_length)[same]
    assert (gap >= 0).all()
    assert (used[same][gap > 0] == length).all()  # A and B touch, unless they were cut
    assert rows["is_random"].mean() > 0.45
    # With whole sentences on either side where nothing was cut.
    whole = used < length
    starts = set(tokens.sentence_offsets().tolist())
    assert {*a[whole], *(a + a_length)[whole], *b[whole], *(b + b_length)[whole]} <= starts


def test_at_least_half_of_the_pairs_are_random() -> None:
    random_pairs = rows = 0
    for seed in range(5):
        made = plan_of(make_tokens(random_documents(300, seed=seed, sentences=(1, 20))), 64, seed=seed)
        random_pairs, rows = random_pairs + int(made["is_random"].sum()), rows + len(made)
    assert rows > 4000
    assert 0.5 - 3 * (0.25 / rows) ** 0.5 < random_pairs / rows < 0.65


def test_sentences_that_a_random_b_leaves_unused_are_given_back() -> None:
    # Sentences of one token: nothing is ever cut, so the spans must tile the documents.
    tokens = make_tokens(random_documents(20, sentences=(2, 200), tokens=(1, 1)))

    def tiled(rows: NDArray[Any], sides: str) -> bool:
        spans = [range(row[f"{s}_start"], row[f"{s}_start"] + row[f"{s}_length"]) for row in rows for s in sides]
        return sorted(place for span in spans for place in span) == list(range(len(tokens.ids)))

    assert tiled(plan_of(tokens, 32, random_share=1.0), "a")
    truthful = plan_of(tokens, 32, random_share=0.0)
    last_alone = truthful["is_random"]  # one sentence is left over at the end of a document
    assert tiled(truthful[~last_alone], "ab") or last_alone.any()
    mixed = plan_of(tokens, 32)
    a_of_all = [range(r["a_start"], r["a_start"] + r["a_length"]) for r in mixed]
    b_of_true = [range(r["b_start"], r["b_start"] + r["b_length"]) for r in mixed[~mixed["is_random"]]]
    assert sorted(place for span in a_of_all + b_of_true for place in span) == list(range(len(tokens.ids)))


def test_a_random_b_never_reads_as_the_true_continuation() -> None:
    texts = random_documents(3, seed=1, vocab_size=9, sentences=(2, 6), tokens=(1, 4))
    tokens = make_tokens(texts * 8)
    end = tokens.document_starts[1:]
    seen = 0
    for seed in range(10):
        rows = plan_of(tokens, 24, seed=seed)
        for row in rows[rows["is_random"] & (rows["a_length"] + rows["b_length"] < 21)]:
            _, b = visible(tokens, row)
            after = int(row["a_start"] + row["a_length"])
            rest = tokens.ids[after : end[document_of(tokens, row["a_start"])]].tolist()
            common = min(len(rest), len(b))
            assert common == 0 or rest[:common] != b[:common]
            seen += common > 0
    assert seen > 100


def test_where_every_text_is_the_same_only_true_pairs_remain() -> None:
    tokens = make_tokens([[[7, 8]] * 6] * 5)
    rows = plan_of(tokens, 11)
    assert len(rows)
    for row in rows[rows["is_random"]]:
        assert int(row["a_start"] + row["a_length"]) in tokens.document_starts  # nothing truly follows


def test_the_random_document_is_drawn_evenly_from_all_others() -> None:
    tokens = make_tokens(random_documents(9, seed=2, sentences=(700, 700), tokens=(2, 2)))
    rows = plan_of(tokens, 8, random_share=1.0)
    own, other = document_of(tokens, rows["a_start"]), document_of(tokens, rows["b_start"])
    counts = np.zeros((9, 9))
    np.add.at(counts, (own, other), 1)
    assert (counts.diagonal() == 0).all()
    expected = counts.sum(1, keepdims=True) / 8
    off = ~np.eye(9, dtype=bool)
    statistic = (((counts - expected) ** 2 / expected)[off]).sum()
    assert abs(statistic - 63) < 4.5 * (2 * 63) ** 0.5
    # And from an even place in it: the last sentences stand there as often as the first.
    place = (rows["b_start"] - tokens.document_starts[other]) / 1400
    assert np.histogram(place, 4, (0, 1))[0] / len(rows) == pytest.approx(0.25, abs=0.02)


def test_random_from_source_stays_in_the_source_and_from_corpus_does_not() -> None:
    sources = [0] * 10 + [1] * 10
    tokens = make_tokens(random_documents(20, sentences=(5, 20)), sources)

    def crossing(random_from: str) -> float:
        rows = plan_of(tokens, 32, random_from=random_from)
        rows = rows[rows["is_random"]]
        side = tokens.sources[document_of(tokens, rows["a_start"])]
        return float((side != tokens.sources[document_of(tokens, rows["b_start"])]).mean())

    assert crossing("source") == 0
    assert crossing("corpus") == pytest.approx(10 / 19, abs=0.1)


def test_two_documents_work_for_a_hundred_seeds() -> None:
    tokens = make_tokens([[[5, 6], [7]], [[8]]])
    for seed in range(100):
        rows = plan_of(tokens, 8, seed=seed)
        assert {int(d) for d in document_of(tokens, rows["a_start"])} == {0, 1}


def test_one_document_is_refused_with_the_way_out() -> None:
    tokens = make_tokens([[[5, 6], [7, 8, 9], [10]]])
    with pytest.raises(RequestError, match=r"at least 2 documents, there are 1;.*set pairs\.rule=none"):
        plan_of(tokens, 16)
    assert len(plan_of(tokens, 16, rule="none"))


def test_a_source_with_one_document_is_refused_only_when_b_must_come_from_it() -> None:
    tokens = make_tokens(random_documents(4), [0, 0, 0, 1])
    with pytest.raises(RequestError, match=r"one has 1; set pairs\.random_from=corpus"):
        plan_of(tokens, 16, random_from="source")
    assert len(plan_of(tokens, 16, random_from="corpus"))


def test_documents_of_one_sentence_give_one_random_pair_each() -> None:
    tokens = make_tokens(random_documents(3000, sentences=(1, 1)))
    rows = plan_of(tokens, 64)
    assert rows["is_random"].all()
    assert Counter(document_of(tokens, rows["a_start"]).tolist()) == Counter(range(3000))


@pytest.mark.parametrize("length", [8, 63, 64, 128])
def test_a_sentence_longer_than_a_row_is_paired_to_its_end(length: int) -> None:
    tokens = make_tokens([[list(range(5, 100)) * 40], [list(range(50, 100)) * 60], *random_documents(3)])
    rows = plan_of(tokens, length, short_share=0.0)
    true = rows[~rows["is_random"] & (document_of(tokens, rows["a_start"]) < 2)]
    assert len(true) > 0.3 * len(rows)
    seen = np.zeros(len(tokens.ids), bool)
    for row in rows:
        sides = "a" if row["is_random"] else "ab"
        for side in sides:
            seen[row[f"{side}_start"] : row[f"{side}_start"] + row[f"{side}_length"]] = True
    assert seen[: tokens.document_starts[2]].mean() > 0.85
    assert (rows["a_length"] + rows["b_length"] + 3).mean() > 0.87 * length


# --- rows without pairs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("short_share", [0.0, 0.1, 1.0])
def test_without_pairs_every_token_is_in_exactly_one_row(length: int, short_share: float) -> None:
    documents = random_documents(30, seed=length, sentences=(1, 30), tokens=(1, 40))
    documents[4] = [list(range(5, 100)) * 8]
    tokens = make_tokens(documents)
    rows = np.sort(plan_of(tokens, length, rule="none", short_share=short_share), order="a_start")
    start, size = rows["a_start"], rows["a_length"].astype(np.int64)
    assert (rows["b_length"] == 0).all()
    assert not rows["is_random"].any()
    assert size.max() == length - 2 if short_share < 1 else size.max() <= length - 2
    assert np.concatenate([[0], (start + size)]).tolist() == [*start.tolist(), len(tokens.ids)]
    assert (document_of(tokens, start) == document_of(tokens, start + size - 1)).all()
    if short_share == 0:  # a row ends inside a sentence only where a sentence is longer than a row
        long = tokens.lengths > length - 2
        inside = np.setdiff1d(start + size, tokens.sentence_offsets())
        assert long[np.searchsorted(tokens.sentence_offsets(), inside, side="right") - 1].all()


def test_without_pairs_one_document_of_one_token_is_enough() -> None:
    assert plan_of(make_tokens([[[9]]]), 8, rule="none").tolist() == [(0, 0, 1, 0, False)]


# --- shares, order, repeatability --------------------------------------------------------------------------------


def test_a_tenth_of_the_rows_have_a_shorter_target() -> None:
    tokens = make_tokens([[[5]] * 20_000] * 20)
    size = plan_of(tokens, 64, rule="none")["a_length"]
    short = size[size < 62]
    assert len(short) / len(size) == pytest.approx(0.1 * 60 / 61, abs=0.012)
    assert np.histogram(short, 3, (2, 62))[0] / len(short) == pytest.approx(1 / 3, abs=0.06)
    assert (plan_of(tokens, 64, short_share=0.0)["a_length"] > 0).all()


@pytest.mark.parametrize("length", [64, 128, 512])
def test_rows_of_ordinary_text_are_well_filled(length: int) -> None:
    tokens = make_tokens(random_documents(60, sentences=(60, 200), tokens=(5, 40)))
    rows = plan_of(tokens, length)
    assert (rows["a_length"] + rows["b_length"] + 3).mean() > 0.87 * length


def test_epochs_and_seeds_give_other_rows_and_the_same_ask_gives_the_same() -> None:
    tokens = make_tokens(random_documents(100))
    first = plan_of(tokens, 32)
    assert (first == plan_of(tokens, 32)).all()
    for other in (plan_of(tokens, 32, epoch=1), plan_of(tokens, 32, seed=1)):
        common = set(first.tolist()) & set(other.tolist())
        assert len(common) < 0.3 * len(first)


def test_rows_are_shuffled() -> None:
    rows = plan_of(make_tokens(random_documents(300)), 32)
    place = np.arange(len(rows))
    for name in ("a_start", "b_start"):
        assert abs(np.corrcoef(place, rows[name])[0, 1]) < 0.08
    neighbours = np.abs(np.diff(np.argsort(np.argsort(rows["a_start"]))))
    assert neighbours.mean() == pytest.approx(len(rows) / 3, rel=0.1)


def test_another_process_plans_the_same_rows(tmp_path: Path) -> None:
    store = make_store(tmp_path, random_documents(50))
    code = (
        "import sys, hashlib, pathlib\n"
        "from bertpt.config.schema import Pairs\n"
        "from bertpt.data.rows.plan import plan_epoch\n"
        "from bertpt.data.tokens.store import TokenStore\n"
        "store = TokenStore.open(pathlib.Path(sys.argv[1]))\n"
        "rows = plan_epoch(store.train, Pairs(), length=32, seed=3, epoch=2)\n"
        "print(hashlib.sha256(rows.tobytes()).hexdigest(), 'torch' in sys.modules)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, str(store.directory)], capture_output=True, text=True, check=True
    )
    here = plan_of(TokenStore.open(tmp_path).train, 32, seed=3, epoch=2)
    assert made.stdout.split() == [hashlib.sha256(here.tobytes()).hexdigest(), "False"]


def test_a_split_without_text_is_refused() -> None:
    with pytest.raises(RequestError, match="no row can be made"):
        plan_of(make_tokens([]), 16, rule="none")
    with pytest.raises(RequestError, match="no row can be made"):
        plan_of(make_tokens([]), 16)

"""What can be reached without context, beside brute force over lists."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from store_helpers import make_tokens, random_documents

from bertpt.config.schema import Pairs
from bertpt.data.rows import baselines
from bertpt.data.rows.plan import pair_labels, plan_epoch

V = 20


def test_unigrams_are_smoothed_and_leave_out_specials() -> None:
    counts = np.zeros(V, np.int64)
    counts[[5, 6]] = [7, 1]
    probabilities = baselines.unigram_probabilities(counts, np.arange(5))
    assert probabilities.sum() == pytest.approx(1)
    assert (probabilities[:5] == 0).all()
    assert probabilities[5] == pytest.approx(8 / 23)
    assert probabilities[19] == pytest.approx(1 / 23)
    entropy = -sum(p * math.log(p) for p in probabilities.tolist() if p)
    assert baselines.unigram_entropy(probabilities) == pytest.approx(entropy)
    labels = np.array([5, 5, 19])
    assert baselines.unigram_loss(labels, probabilities) == pytest.approx(
        -(2 * math.log(8 / 23) + math.log(1 / 23)) / 3
    )


def test_the_loss_of_drawn_labels_is_the_entropy() -> None:
    draw = np.random.default_rng(0)
    counts = draw.integers(0, 100, V)
    probabilities = baselines.unigram_probabilities(counts, np.arange(5))
    labels = draw.choice(V, 50_000, p=probabilities)
    assert baselines.unigram_loss(labels, probabilities) == pytest.approx(
        baselines.unigram_entropy(probabilities), abs=0.02
    )


@pytest.mark.parametrize("seed", range(4))
def test_document_counts_are_those_of_a_loop_over_labels(seed: int) -> None:
    draw = random.Random(seed)
    # Each document has words of its own, so that its counts are worth something.
    documents = [
        random_documents(1, seed=9 * seed + d, first_id=5 + 2 * d, vocab_size=9 + 2 * d, sentences=(2, 8))[0]
        for d in range(6)
    ]
    tokens = make_tokens(documents)
    text = [[token for sentence in document for token in sentence] for document in documents]
    ends = np.cumsum([len(t) for t in text]).tolist()
    rows = plan_epoch(tokens, Pairs(), length=24, seed=seed, epoch=0)
    probabilities = baselines.unigram_probabilities(np.bincount(tokens.ids, minlength=V), np.arange(5))
    per_row, in_second, labels, owners = [], [], [], []
    for index, row in enumerate(rows.tolist()):
        a, b, a_length, b_length, _ = row
        places = [(p, False) for p in range(a, a + a_length)] + [(p, True) for p in range(b, b + b_length)]
        hidden = sorted(draw.sample(range(len(places)), draw.randint(1, 4)))
        per_row.append(len(hidden))
        for nth in hidden:
            place, second = places[nth]
            in_second.append(second)
            labels.append(int(tokens.ids[place]))
            owners.append((index, next(d for d, end in enumerate(ends) if place < end)))
    shares = []
    for label, (row_index, document) in zip(labels, owners, strict=True):
        counts = Counter(text[document])
        for other, owner in zip(labels, owners, strict=True):
            if owner == (row_index, document):
                counts[other] -= 1
        shares.append(max(counts[label], 0) / max(sum(counts.values()), 1))
    best = min(
        (
            -sum(math.log(w * s + (1 - w) * probabilities[y]) for s, y in zip(shares, labels, strict=True))
            / len(labels),
            w,
        )
        for w in np.arange(0, 1, 0.05).tolist()
    )
    found = baselines.document_count_loss(
        tokens, rows, np.array(per_row), np.array(in_second), np.array(labels), probabilities
    )
    assert found == pytest.approx(best)
    assert found[1] > 0.2


def test_document_counts_help_where_documents_differ_and_not_where_they_do_not() -> None:
    different = [[[5, 6]] * 50, [[7, 8]] * 50]
    alike = [[[5, 6, 7, 8]] * 25] * 2
    for documents, helps in ((different, True), (alike, False)):
        tokens = make_tokens(documents)
        rows = plan_epoch(tokens, Pairs(rule="none"), length=16, seed=0, epoch=0)
        labels = tokens.ids[rows["a_start"]].astype(np.int64)
        probabilities = baselines.unigram_probabilities(np.bincount(tokens.ids, minlength=V), np.arange(5))
        one = np.ones(len(rows), np.int64)
        loss, share = baselines.document_count_loss(tokens, rows, one, np.zeros(len(rows), bool), labels, probabilities)
        unigram = baselines.unigram_loss(labels, probabilities)
        assert loss <= unigram
        assert (unigram - loss > 0.5) == helps
        assert (share > 0.5) == helps or not helps


def test_no_labels_have_no_loss() -> None:
    tokens = make_tokens([[[5, 6]], [[7]]])
    rows = plan_epoch(tokens, Pairs(), length=16, seed=0, epoch=0)
    none = np.zeros(0, np.int64)
    loss, _ = baselines.document_count_loss(
        tokens, rows, np.zeros(len(rows), np.int64), none.astype(bool), none, np.full(V, 1 / V)
    )
    assert math.isnan(loss)
    assert math.isnan(baselines.unigram_loss(none, np.full(V, 1 / V)))


def test_the_sources_of_both_halves_are_compared() -> None:
    sources = [0, 0, 0, 1, 1, 1]
    tokens = make_tokens(random_documents(6, sentences=(3, 9)), sources)
    rows = plan_epoch(tokens, Pairs(), length=24, seed=0, epoch=0)
    is_random, same = pair_labels(rows, "next"), baselines.same_source(tokens, rows)
    starts = tokens.document_starts.tolist()

    def source(place: int) -> int:
        return sources[max(d for d in range(6) if starts[d] <= place)]

    assert same.tolist() == [source(a) == source(b) for a, b, *_ in rows.tolist()]
    assert is_random.tolist() == [row[4] for row in rows.tolist()]
    assert same[~is_random].all()
    assert not same.all()


def test_balanced_accuracy_is_the_mean_over_labels_then_groups() -> None:
    draw = random.Random(0)
    n = 200
    right = [draw.random() < 0.7 for _ in range(n)]
    label = [draw.random() < 0.2 for _ in range(n)]
    group = [draw.choice([0, 1, 4]) for _ in range(n)]
    label = [x and g != 4 for x, g in zip(label, group, strict=True)]  # one group has one label only

    def share(wanted: bool, g: int) -> float:
        among = [r for r, x, o in zip(right, label, group, strict=True) if x == wanted and o == g]
        return sum(among) / len(among)

    expected = sum((share(True, g) + share(False, g)) / 2 for g in (0, 1)) / 2
    found = baselines.balanced_by_group(np.array(right), np.array(label), np.array(group))
    assert found == pytest.approx(expected)
    assert math.isnan(baselines.balanced_by_group(np.array([True]), np.array([True]), np.array([0])))
    assert math.isnan(baselines.balanced_by_group(*(np.zeros(0, bool),) * 2, np.zeros(0, int)))
    always = np.array(label)  # a model that always says "true pair" is right on ~label only: chance
    assert baselines.balanced_by_group(~always, always, np.array(group)) == 0.5


def test_knowing_only_the_groups_is_chance_within_groups() -> None:
    # Group 0 holds mostly random pairs, group 1 mostly true ones; the guess is the group.
    group = np.array([0] * 100 + [1] * 100)
    label = np.array([True] * 90 + [False] * 10 + [True] * 10 + [False] * 90)
    right = (group == 0) == label
    assert baselines.balanced_accuracy(right, label) == pytest.approx(0.9)
    assert baselines.balanced_by_group(right, label, group) == pytest.approx(0.5)


def test_the_source_detector_is_the_best_rule_that_knows_both_sources() -> None:
    draw = random.Random(1)
    n = 500
    source = [draw.choice([0, 1, 2]) for _ in range(n)]
    other = [draw.choice([s, 0, 1, 2]) for s in source]
    same = [a == b for a, b in zip(source, other, strict=True)]
    # Pairs of different sources are random always; of the same source often, in source 2.
    is_random = [not x or draw.random() < (0.8 if s == 2 else 0.3) for x, s in zip(same, source, strict=True)]
    facts = list(zip(source, same, is_random, strict=True))
    best = 0.0
    for guesses in range(2**6):  # every table of guesses by source and sameness
        table = {(s, x): bool(guesses >> (2 * s + x) & 1) for s in range(3) for x in (False, True)}
        best = max(best, sum(table[s, x] == r for s, x, r in facts) / n)
    found = baselines.source_detector_accuracy(np.array(is_random), np.array(same), np.array(source))
    assert found == pytest.approx(best)

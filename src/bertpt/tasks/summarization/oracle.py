"""Which sentences of an article its summary stands for: the labels of extractive summarization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bertpt.tasks.summarization.rouge import Counts, f_measure, ngrams, words

FOUND_SHARE = 0.9  # of a summary's letters in sentences of the article: then these are the labels


def oracle(sentences: Sequence[str], summary: str, limit: int | None) -> tuple[list[int], bool]:
    """Numbers of the sentences, rising, and whether the summary is made of them.

    Args:
        sentences: of the article.
        summary: in free words, or whole sentences of the article in any order.
        limit: most sentences that are found greedily.
    """
    found = verbatim(sentences, summary)
    if found is not None:
        return found, True
    return greedy([words(sentence) for sentence in sentences], words(summary), limit), False


def verbatim(sentences: Sequence[str], summary: str) -> list[int] | None:
    """The sentences that a summary is made of; ``None`` where they are less than nine tenths of it.

    White space is left out on both sides: where sentences were joined, some summaries have none. The longest sentence
    is looked for first and taken out, so that a short one is not found inside it. What is left over counts for the
    sentence that holds it, when it is half of it or more: two programs seldom agree on every end of a sentence.
    """
    rest = "".join(summary.split())
    size = len(rest)
    if not size:
        return None
    squeezed = ["".join(sentence.split()) for sentence in sentences]
    found = set()
    for number in sorted(range(len(squeezed)), key=lambda number: -len(squeezed[number])):
        before, sentence, after = rest.partition(squeezed[number])
        if sentence:
            found.add(number)
            rest = f"{before}\0{after}"
    left = 0
    for piece in filter(None, rest.split("\0")):
        holding = [n for n, sentence in enumerate(squeezed) if piece in sentence and 2 * len(piece) >= len(sentence)]
        found.update(holding[:1])
        left += 0 if holding else len(piece)
    return sorted(found) if left <= (1 - FOUND_SHARE) * size else None


def greedy(sentences: Sequence[Sequence[str]], reference: Sequence[str], limit: int | None) -> list[int]:
    """Sentences added one by one, each time the one that raises ROUGE-1 + ROUGE-2 (F) most, until none does.

    The selection of BertSum (Liu 2019) with counted n-grams, where that code takes each n-gram once. N-grams of the
    article are within sentences. Of equal sentences the first is taken.

    Args:
        sentences: words of each.
        reference: words of the summary.
        limit: most sentences.
    """
    theirs = [ngrams(reference, n) for n in (1, 2)]
    totals = [counts.total() for counts in theirs]
    ours = [[ngrams(sentence, n) for n in (1, 2)] for sentence in sentences]
    sizes = [[counts.total() for counts in each] for each in ours]
    shared = [[_within(counts, other) for counts, other in zip(each, theirs, strict=True)] for each in ours]
    left = [dict(counts) for counts in theirs]  # n-grams of the reference that no chosen sentence has taken
    common, size = [0, 0], [0, 0]
    picked: list[int] = []
    best = 0.0
    while limit is None or len(picked) < limit:
        step = None
        for number in range(len(sentences)):
            if number in picked:
                continue
            value = 0.0
            for n in (0, 1):
                gain = sum(min(count, left[n][gram]) for gram, count in shared[number][n].items())
                value += f_measure(common[n] + gain, size[n] + sizes[number][n], totals[n])
            if value > best:
                best, step = value, number
        if step is None:
            break
        picked.append(step)
        for n in (0, 1):
            size[n] += sizes[step][n]
            for gram, count in shared[step][n].items():
                taken = min(count, left[n][gram])
                left[n][gram] -= taken
                common[n] += taken
    return sorted(picked)


def _within(counts: Counts, reference: Counts) -> Counts:
    return Counter({gram: count for gram, count in counts.items() if gram in reference})

"""Articles and their sentences: read, split, labelled, and parted so that no copy stands on two sides."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bertpt.config.finetune.summarization import Shares, SummarizationConfig
from bertpt.data.random import bits, uniform
from bertpt.tasks.summarization.oracle import oracle
from bertpt.tasks.tables import read_table
from bertpt.tasks.task import Examples

_SPACES = str.maketrans({"\r": " ", "\u2028": " ", "\u2029": " ", "\x85": " ", "\x0b": " ", "\x0c": " ", "\ufeff": " "})
_PARTS_SEED = 20190325  # which articles of one file are dev and test

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Article:
    """One article.

    Attributes:
        place: file and line, for people.
        text: as it was given.
        spans: of the sentences in it, begin and end in characters.
        summary: the reference; empty where it is not known.
        labels: numbers of the sentences that make a summary, rising.
        kind: how the labels were made: ``given``, ``verbatim`` (see ``oracle``) or ``greedy``.
    """

    place: str
    text: str
    spans: tuple[Span, ...]
    summary: str = ""
    labels: tuple[int, ...] = ()
    kind: str = "given"

    @property
    def sentences(self) -> list[str]:
        """The sentences, as they stand in the text."""
        return [self.text[begin:end] for begin, end in self.spans]

    @property
    def key(self) -> str:
        """The same for copies, whatever their white space."""
        return " ".join(self.text.split())


def sentence_spans(text: str, *, language: str, mode: str, headline: bool) -> tuple[Span, ...]:
    """Where the sentences of an article stand: begin and end in characters, in order, without white space around.

    A sentence never goes over the end of a paragraph. Where blank lines are, they alone end one, and other line ends
    are white space; where none is, each line is a paragraph. Sentences are found by rules, or are the lines
    (``mode: lines``). With ``headline`` the first paragraph is left out, when there are others.
    """
    from bertpt.data.tokens.sentences import split_sentences

    flat = text.translate(_SPACES)
    lines = flat.split("\n")
    full = [bool(line.strip()) for line in lines]
    if mode == "split" and True in full:
        inner = full[full.index(True) : len(full) - full[::-1].index(True)]
        if False in inner:
            ends = [" " if one and other else "\n" for one, other in itertools.pairwise(full)]
            flat = "".join(part + end for part, end in zip(lines, [*ends, ""], strict=True))
    at = 0
    if headline:
        first = len(flat) - len(flat.lstrip())
        end = flat.find("\n", first)
        at = end if end >= 0 and flat[end:].strip() else 0
    spans = []
    for sentence in split_sentences(flat[at:], language, "lines" if mode == "lines" else "split"):
        begin = flat.index(sentence, at)
        at = begin + len(sentence)
        spans.append((begin, at))
    return tuple(spans)


def read_articles(path: str, config: SummarizationConfig) -> Examples:
    """The articles of a file; malformed ones are collected in ``faults``.

    Raises:
        RequestError: no such file, not text, or a column is not there.
    """
    data = config.data
    columns = [column for column in (data.article, data.summary, data.labels) if column is not None]
    table = read_table(Path(path), data, columns, lists=True)
    found = Examples([], table.faults, Counter(blank=table.blank))
    for place, cells in table.rows:
        text, *others = cells
        spans = sentence_spans(text, language=data.language, mode=data.sentences, headline=data.headline)
        summary = "" if data.summary is None else others.pop(0)
        article = Article(place, text, spans, summary)
        if not spans:
            found.counts["empty"] += 1
        elif data.labels is not None:
            if isinstance(known := _labelled(article, others[0]), str):
                found.faults.append(known)
            else:
                found.rows.append(known)
        elif not summary.strip():
            found.counts["no_summary"] += 1
        else:
            numbers, is_verbatim = oracle(article.sentences, summary, data.oracle_limit)
            kind = "verbatim" if is_verbatim else "greedy"
            found.rows.append(replace(article, labels=tuple(numbers), kind=kind))
    return found


def _labelled(article: Article, cell: str) -> Article | str:
    """The article with given labels, or the fault."""
    values = cell.split()
    if wrong := [value for value in values if value not in ("0", "1")]:
        return f"{article.place}: labels: 0 or 1 is expected for each sentence, not {wrong[0]!r}"
    if len(values) != len(article.spans):
        return f"{article.place}: {len(values):,} labels, but {len(article.spans):,} sentences"
    numbers = tuple(number for number, value in enumerate(values) if value == "1")
    summary = article.summary if article.summary.strip() else " ".join(article.sentences[n] for n in numbers)
    return replace(article, labels=numbers, summary=summary)


def part_articles(found: Mapping[str, Examples], shares: Shares | None) -> dict[str, Examples]:
    """What each split keeps: its part of the file; of copies the first; in train none that stands in dev or test.

    Copies that go are counted and named.

    Args:
        found: by split; each holds the whole file where there are shares.
        shares: parts of dev and test.
    """
    parted: dict[str, Examples] = {}
    elsewhere: dict[str, str] = {}
    for split in sorted(found, key="train".__eq__):  # train comes last
        examples = Examples([], found[split].faults, found[split].counts.copy())
        seen: dict[str, str] = {}
        for article in found[split].rows:
            key = article.key
            if shares is not None and _part(key, shares) != split:
                continue
            if key in seen:
                examples.counts["repeated"] += 1
                examples.notes.append(f"{article.place} = {seen[key]}")
            elif split == "train" and key in elsewhere:
                examples.counts["heldout"] += 1
                examples.notes.append(f"{article.place} = {elsewhere[key]}")
            else:
                seen[key] = article.place
                examples.rows.append(article)
        parted[split] = examples
        elsewhere |= seen
        for article in examples.rows:
            examples.counts[article.kind] += article.kind != "given"
            examples.counts["one_sentence"] += len(article.spans) == 1
            examples.counts["no_sentence"] += not article.labels
    return {split: parted[split] for split in found}


def _part(key: str, shares: Shares) -> str:
    number = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    value = float(uniform(bits(_PARTS_SEED, number))[0])
    return "dev" if value < shares.dev else "test" if value < shares.dev + shares.test else "train"

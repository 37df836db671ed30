"""Articles as rows for the model: [CLS] sentence [SEP] [CLS] sentence [SEP] ..., in windows of whole sentences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.tasks.encode import Rows
from bertpt.tasks.summarization.articles import Article
from bertpt.tasks.task import Encoded

SPECIALS = 2  # tokens around a sentence


@dataclass(slots=True)
class Windows(Encoded):
    """Rows of articles; the marked tokens are the [CLS] of all sentences, each once, in the order of the articles.

    Attributes:
        sentences: int64 [articles], of each.
        cut_sentences: those that are longer than a window.
    """

    sentences: NDArray[np.int64] = field(kw_only=True)
    cut_sentences: int = field(kw_only=True)


class Window(NamedTuple):
    """Sentences ``begin`` to ``end``, of which those from ``first`` to ``last`` are scored here (ends excluded)."""

    begin: int
    end: int
    first: int
    last: int


def windows(sizes: Sequence[int], room: int) -> list[Window]:
    """Windows of whole sentences that overlap by about half; each sentence is scored in one of them.

    It is the one with the most context, which is the smaller of the tokens before and after it; of equal ones the
    first. So the scored sentences of a window stand together, and windows follow each other as they do.

    Args:
        sizes: tokens of each sentence, ``room`` at most.
        room: tokens of a window.
    """
    ends = [0, *accumulate(sizes)]  # tokens before each sentence
    parts: list[tuple[int, int]] = []
    begin = 0
    while begin < len(sizes):
        end = bisect_right(ends, ends[begin] + room) - 1
        parts.append((begin, end))
        if end == len(sizes):
            break
        half = bisect_right(ends, (ends[begin] + ends[end]) / 2)
        begin = max(half, begin + 1)
        while ends[end + 1] - ends[begin] > room:  # the next window must go on beyond this one
            begin += 1
    context, owner = [-1] * len(sizes), [0] * len(sizes)
    for number, (begin, end) in enumerate(parts):
        for index in range(begin, end):
            least = min(ends[index] - ends[begin], ends[end] - ends[index + 1])
            if least > context[index]:
                context[index], owner[index] = least, number
    found = []
    for number, (begin, end) in enumerate(parts):
        own = [index for index in range(begin, end) if owner[index] == number]
        if own:
            found.append(Window(begin, end, own[0], own[-1] + 1))
    return found


def encode_articles(
    articles: Sequence[Article], tokenizer: WordPieceTokenizer, *, max_length: int, segments: int, known: bool
) -> Windows:
    """Rows of the articles; a sentence longer than a row is cut.

    Args:
        articles: to encode.
        tokenizer: of the run.
        max_length: most tokens of a row.
        segments: token types of the model; with two they alternate from sentence to sentence.
        known: whether the labels are.
    """
    pieces = iter(tokenizer.encode_sentences([text for article in articles for text in article.sentences]))
    ids: list[int] = []
    types: list[int] = []
    offsets, mark_offsets, full = [0], [0], []
    marks: list[int] = []
    cut = cut_sentences = 0
    for article in articles:
        own = [next(pieces) for _ in article.spans]
        full.append(sum(map(len, own)) + SPECIALS * len(own))
        cut += full[-1] > max_length
        cut_sentences += sum(len(sentence) + SPECIALS > max_length for sentence in own)
        own = [sentence[: max_length - SPECIALS] for sentence in own]
        for window in windows([len(sentence) + SPECIALS for sentence in own], max_length):
            for number in range(window.begin, window.end):
                if window.first <= number < window.last:
                    marks.append(len(ids) - offsets[-1])
                ids += [tokenizer.cls_id, *own[number], tokenizer.sep_id]
                types += [(number - window.begin) % 2 if segments > 1 else 0] * (len(own[number]) + SPECIALS)
            offsets.append(len(ids))
            mark_offsets.append(len(marks))
    rows = Rows(
        np.array(ids, np.int32),
        np.array(types, np.uint8),
        np.array(offsets, np.int64),
        np.array(marks, np.int64),
        np.array(mark_offsets, np.int64),
    )
    return Windows(
        rows,
        np.array(full, np.int64),
        cut,
        mark_labels=torch.from_numpy(label_array(articles)) if known else None,
        sentences=np.array([len(article.spans) for article in articles], np.int64),
        cut_sentences=cut_sentences,
    )


def label_array(articles: Sequence[Article]) -> NDArray[np.float32]:
    """1 for the labelled sentences of all articles and 0 for the others, float32 [K]."""
    sizes = [len(article.spans) for article in articles]
    found = np.zeros(sum(sizes), np.float32)
    for start, article in zip(accumulate([0, *sizes]), articles, strict=False):
        found[[start + number for number in article.labels]] = 1
    return found

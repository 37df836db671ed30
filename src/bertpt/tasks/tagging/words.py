"""Words to rows of pieces, one marked token for each word; long sentences in windows that overlap by half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.tasks.encode import Rows
from bertpt.tasks.task import Encoded

SPECIALS = 2  # [CLS] and [SEP]


class Window(NamedTuple):
    """Words ``begin`` to ``end`` make a row; those from ``own_begin`` to ``own_end`` are predicted in it."""

    begin: int
    end: int
    own_begin: int
    own_end: int


def windows(lengths: Sequence[int], room: int) -> list[Window]:
    """Rows of at most ``room`` pieces that cover a sentence, overlapping by up to half; each word is predicted in one.

    That is the row with the most pieces on the word's nearer side; begin and end of the sentence are no sides.

    Args:
        lengths: pieces of each word, 1 to ``room``.
        room: pieces of a row.
    """
    words = len(lengths)
    places = np.concatenate(([0], np.cumsum(lengths)))
    if places[-1] <= room:
        return [Window(0, words, 0, words)] if words else []
    spans, begin = list[tuple[int, int]](), 0
    while True:
        end = int(np.searchsorted(places, places[begin] + room, "right")) - 1
        if end == words:
            # The last row reaches back as far as it can.
            spans.append((int(np.searchsorted(places, places[-1] - room)), words))
            break
        spans.append((begin, end))
        begin = min(end, max(begin + 1, int(np.searchsorted(places, places[end] - room // 2))))
    far = 2 * room
    best, row = np.full(words, -1), np.zeros(words, np.int64)
    for number, (begin, end) in enumerate(spans):
        before = places[begin:end] - places[begin] + (far if begin == 0 else 0)
        after = places[end] - places[begin + 1 : end + 1] + (far if end == words else 0)
        nearer = np.minimum(before, after)
        is_better = nearer > best[begin:end]
        best[begin:end][is_better], row[begin:end][is_better] = nearer[is_better], number
    # Both sides move on from row to row, so the words of a row are neighbours and rows keep their order.
    counts = np.bincount(row, minlength=len(spans))
    borders = np.concatenate(([0], np.cumsum(counts)))
    found = (Window(*span, int(borders[n]), int(borders[n + 1])) for n, span in enumerate(spans))
    return [window for window in found if window.own_begin < window.own_end]


@dataclass(slots=True, kw_only=True)
class EncodedWords(Encoded):
    """Rows of words; the marked tokens are their first pieces, in the order of the words.

    ``labels`` are bool [rows, 2]: whether a sentence begins and ends with the row's marked words.

    Attributes:
        words: int64 [examples], words of each.
        without_pieces: words of which the tokenizer keeps nothing.
    """

    words: NDArray[np.int64]
    without_pieces: int


def encode_words(tokenizer: WordPieceTokenizer, sentences: Sequence[Sequence[str]], max_length: int) -> EncodedWords:
    """Rows of at most ``max_length`` tokens.

    Each word has a piece: one of which the tokenizer keeps nothing (zero-width letters, an accent alone) is [UNK]. Of a
    word that has more pieces than a row, the first are kept.
    """
    room = max_length - SPECIALS
    pieces = iter(tokenizer.encode_sentences([word for words in sentences for word in words]))
    ids, marks, ends = list[int](), list[int](), list[tuple[bool, bool]]()
    offsets, mark_offsets, full = [0], [0], []
    without = 0
    for words in sentences:
        own = list(islice(pieces, len(words)))
        without += sum(not each for each in own)
        own = [each[:room] or [tokenizer.unk_id] for each in own]
        lengths = [len(each) for each in own]
        full.append(sum(lengths) + SPECIALS)
        for window in windows(lengths, room):
            first = np.cumsum([1, *lengths[window.begin : window.end]])
            marks += first[window.own_begin - window.begin : window.own_end - window.begin].tolist()
            mark_offsets.append(len(marks))
            ids += [tokenizer.cls_id, *chain.from_iterable(own[window.begin : window.end]), tokenizer.sep_id]
            offsets.append(len(ids))
            ends.append((window.own_begin == 0, window.own_end == len(words)))
    rows = Rows(
        np.array(ids, np.int32),
        np.zeros(len(ids), np.uint8),
        np.array(offsets, np.int64),
        np.array(marks, np.int64),
        np.array(mark_offsets, np.int64),
    )
    return EncodedWords(
        rows,
        np.array(full, np.int64),
        sum(length > max_length for length in full),
        labels=torch.tensor(ends, dtype=torch.bool).view(-1, 2),
        words=np.array([len(words) for words in sentences], np.int64),
        without_pieces=without,
    )

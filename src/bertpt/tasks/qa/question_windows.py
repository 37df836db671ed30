"""Questions to rows: [CLS] question [SEP] window of the context [SEP], in windows that overlap.

Source: ``convert_examples_to_features`` of the released ``run_squad.py``. A window begins ``doc_stride`` tokens after
the one before it. For training, a window that holds the whole answer has its span; any other one has [CLS].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bertpt.config.finetune.qa import SPECIALS
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.tasks.encode import Rows
from bertpt.tasks.qa.graphemes import whole
from bertpt.tasks.qa.questions import Question, Span
from bertpt.tasks.task import Encoded, Facts


@dataclass(slots=True, kw_only=True)
class Windows(Encoded):
    """Rows of questions, those of one question after the other.

    Attributes:
        of: int64 [rows], which question each row is of; rising.
        begins: int64 [rows], the first token of the context in it.
        sizes: int64 [rows], tokens of the context in it.
        places: int64 [rows], position in the row of the first of them.
        offsets: of each question int64 [n, 2], where the tokens of its context stand in characters.
        contexts: of each question, its text.
    """

    of: NDArray[np.int64]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    places: NDArray[np.int64]
    offsets: list[NDArray[np.int64]] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)


def window_begins(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """First token and size of each window of a context; every token is in one, an empty context has one.

    Args:
        tokens: of the context.
        room: most tokens of a window; stride: from one begin to the next, at most ``room``.
    """
    found = [(0, min(tokens, room))]
    while sum(found[-1]) < tokens:
        begin = found[-1][0] + stride
        found.append((begin, min(tokens - begin, room)))
    return found


def covered(span: Span, offsets: NDArray[np.int64]) -> tuple[int, int] | None:
    """First and last token that hold a character of the span; ``None``: no token does."""
    first = int(np.searchsorted(offsets[:, 1], span[0], "right"))
    last = int(np.searchsorted(offsets[:, 0], span[1], "left")) - 1
    return (first, last) if first <= last else None


def encode_questions(
    tokenizer: WordPieceTokenizer, examples: Sequence[Question], facts: Facts, *, known: bool
) -> Windows:
    """All windows of all questions; equal contexts are encoded once.

    Args:
        tokenizer: of the run.
        examples: questions.
        facts: ``max_length``, ``doc_stride``, ``max_query_length``, ``max_answer_length``.
        known: whether labels are wanted, int64 [rows, 2]: positions in the row of the answer's first and last token.
    """
    longest = facts["max_query_length"]
    distinct = list(dict.fromkeys(example.context for example in examples))
    contexts = dict(zip(distinct, tokenizer.encode_with_offsets(distinct), strict=True))
    questions = tokenizer.encode_sentences([example.question for example in examples])
    counts: Counter[str] = Counter(long_question=sum(len(question) > longest for question in questions))
    ids: list[NDArray[np.int32]] = []
    heads: list[int] = []
    table: list[tuple[int, int, int]] = []  # question, first token, tokens
    labels: list[tuple[int, int]] = []
    full = np.zeros(len(examples), np.int64)
    sep = np.array([tokenizer.sep_id], np.int32)
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        tokens, offsets = contexts[example.context]
        head = np.array([tokenizer.cls_id, *question[:longest], tokenizer.sep_id], np.int32)
        full[number] = len(question) + len(tokens) + SPECIALS
        gold = _gold(example, offsets, facts["max_answer_length"], counts)
        for begin, size in window_begins(len(tokens), facts["max_length"] - len(head) - 1, facts["doc_stride"]):
            ids += [head, tokens[begin : begin + size], sep]
            heads.append(len(head))
            table.append((number, begin, size))
            inside = gold is not None and begin <= gold[0] and gold[1] < begin + size
            labels.append((gold[0] - begin + len(head), gold[1] - begin + len(head)) if gold and inside else (0, 0))
    of, begins, sizes = np.array(table, np.int64).reshape(-1, 3).T
    places = np.array(heads, np.int64)
    return Windows(
        rows=_rows(ids, places, sizes),
        full=full,
        cut=int((np.bincount(of, minlength=len(examples)) > 1).sum()),
        labels=torch.tensor(labels, dtype=torch.int64).view(-1, 2) if known else None,
        counts=+counts,
        of=of,
        begins=begins,
        sizes=sizes,
        places=places,
        offsets=[contexts[example.context][1] for example in examples],
        contexts=[example.context for example in examples],
    )


def _rows(ids: list[NDArray[np.int32]], places: NDArray[np.int64], sizes: NDArray[np.int64]) -> Rows:
    lengths = places + sizes + 1
    ends = np.cumsum(lengths)
    position = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    return Rows(
        ids=np.concatenate(ids) if ids else np.zeros(0, np.int32),
        types=(position >= np.repeat(places, lengths)).astype(np.uint8),
        offsets=np.concatenate([[0], ends]).astype(np.int64),
    )


def _gold(example: Question, offsets: NDArray[np.int64], longest: int, counts: Counter[str]) -> tuple[int, int] | None:
    """The tokens of the first answer that has any; what is odd about it is counted."""
    for span in example.spans:
        if (found := covered(span, offsets)) is not None:
            counts["inside_token"] += whole(example.context, *_edges(found, offsets)) != whole(example.context, *span)
            counts["long_answer"] += found[1] - found[0] >= longest
            return found
    counts["no_token"] += bool(example.spans)
    return None


def _edges(tokens: tuple[int, int], offsets: NDArray[np.int64]) -> Span:
    return int(offsets[tokens[0], 0]), int(offsets[tokens[1], 1])

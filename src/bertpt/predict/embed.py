"""Contextual vectors of words and sentences.

A text that is longer than the model's positions is read in windows that overlap by half, and each piece is taken from
the window in which it has the most text on its nearer side.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertpt.batch import Batch
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.files import write_file
from bertpt.model.bert import Bert
from bertpt.predict.opening import open_model
from bertpt.predict.texts import Text, refuse
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.train.evaluate import evaluating

Pooling = Literal["word", "mean", "cls"]
Combine = Literal["mean", "concat"]
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vectors of one text.

    Attributes:
        text: as it was given.
        words: its words, one for each vector; empty for vectors of the whole text.
        vectors: float32 [W, D], or [1, D] of the whole text.
        without_pieces: bool [W], True at words of which the tokenizer keeps nothing: their vectors are zero.
    """

    text: str
    words: list[str]
    vectors: NDArray[np.float32]
    without_pieces: NDArray[np.bool_]

    def as_dict(self, pooling: Pooling) -> dict[str, Any]:
        """Plain data; numbers have as many digits as tell float32 values apart."""
        # str() of a float32 is its shortest form, that of the float64 equal to it has 17 digits.
        vectors = [[float(str(value)) for value in vector] for vector in self.vectors]
        if pooling != "word":
            return {"text": self.text, "vector": vectors[0]}
        without = np.flatnonzero(self.without_pieces).tolist()
        return {"text": self.text, "words": self.words, "vectors": vectors, "without_pieces": without}


class Window(NamedTuple):
    """Pieces ``begin`` to ``end`` of a text make a row; it gives the vectors of ``own_begin`` to ``own_end``."""

    begin: int
    end: int
    own_begin: int
    own_end: int


def windows(pieces: int, room: int) -> list[Window]:
    """Rows of at most ``room`` pieces that cover a text, overlapping by half; each piece is owned once."""
    if pieces <= room:
        return [Window(0, pieces, 0, pieces)]
    step = max(1, room // 2)
    begins = [*range(0, pieces - room, step), pieces - room]
    # Between two windows, up to the middle of their overlap a piece has more text before it in the first.
    inner = ((begin + before + room + 1) // 2 for before, begin in pairwise(begins))
    borders = [0, *inner, pieces]
    return [Window(b, b + room, borders[i], borders[i + 1]) for i, b in enumerate(begins)]


def choose_layers(text: str, count: int) -> list[int]:
    """Numbers from 0 (embeddings) to ``count`` (last layer) out of ``"-1,-2"``.

    Raises:
        RequestError: not a list of numbers, or there is no such layer.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(f"--layers: {text}: numbers between commas are expected, e.g. -1 or -1,-2") from None
    for number in numbers:
        if not -count - 1 <= number <= count:
            raise RequestError(f"--layers: {number}: 0 (embeddings) to {count}, or -1 (the last) to {-count - 1}")
    return [number % (count + 1) for number in numbers]


@dataclass(frozen=True, slots=True)
class Embedder:
    """An encoder with its tokenizer, and which vectors are wanted.

    Attributes:
        bert: the encoder.
        tokenizer: its tokenizer.
        layers: 0 is what goes into the first layer, n comes out of layer n.
        combine: the mean of these layers, or one after the other.
        pooling: ``word``: a vector for each word, the mean of its pieces. ``mean``: of all tokens with [CLS] and [SEP],
            as sentence-transformers takes it. ``cls``: that of [CLS].
        punctuation: whether punctuation marks are words of their own.
    """

    bert: Bert
    tokenizer: WordPieceTokenizer
    layers: Sequence[int]
    combine: Combine = "mean"
    pooling: Pooling = "word"
    punctuation: bool = True

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        layers: str = "-1",
        combine: Combine = "mean",
        pooling: Pooling = "word",
        punctuation: bool = True,
        say: Callable[[str], None] = say_line,
    ) -> Embedder:
        """Open a run, a checkpoint, an imported or a transformers directory; see the attributes.

        Raises:
            RequestError: nothing of the kind, or no such layer.
        """
        model, tokenizer = open_model(path, mlm=False, say=say)
        numbers = choose_layers(layers, model.config.num_hidden_layers)
        return cls(model.bert, tokenizer, numbers, combine, pooling, punctuation)

    def embed(self, texts: Sequence[Text], *, shown: bool = False) -> Iterator[Embedding]:
        """The vectors of each text, in their order, computed in batches.

        Args:
            texts: each with the name that a fault calls it by.
            shown: whether progress is.

        Raises:
            RequestError: [CLS] is wanted, and texts are too long for one row; names them before any work.
        """
        if self.pooling == "cls":
            refuse([fault for text in texts if (fault := self._too_long(text))])
        with Progress("embed", unit="texts", total=len(texts), shown=shown) as progress:
            for begin in range(0, len(texts), BATCH_SIZE):
                group = texts[begin : begin + BATCH_SIZE]
                yield from self._embed(group)
                progress.add(len(group))

    @property
    def _room(self) -> int:
        return self.bert.embeddings.position_embeddings.num_embeddings - 2

    def _too_long(self, text: Text) -> str | None:
        [ids] = self.tokenizer.encode_sentences([text.text])
        if len(ids) <= self._room:
            return None
        return (
            f"{text.place}: {len(ids) + 2} tokens with [CLS] and [SEP], the model has {self._room + 2} positions;"
            " --pooling mean reads long texts in windows"
        )

    def _embed(self, texts: Sequence[Text]) -> Iterator[Embedding]:
        words = [self.tokenizer.surface_words(text.text, punctuation=self.punctuation) for text in texts]
        pieces = [self.tokenizer.encode_sentences(each) for each in words]
        ids = [[index for word in each for index in word] for each in pieces]
        for text, names, cut, states in zip(texts, words, pieces, self._states(ids), strict=True):
            if self.pooling == "word":
                lengths = torch.tensor([len(word) for word in cut], dtype=torch.long)
                vectors = _means(states[1:-1], lengths).numpy()
                yield Embedding(text.text, names, vectors, (lengths == 0).numpy())
            else:
                vector = states[0] if self.pooling == "cls" else states.mean(0)
                yield Embedding(text.text, [], vector[None].numpy(), np.zeros(1, np.bool_))

    def _states(self, ids: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        """Float32 [2 + pieces, D] of each text: [CLS], its pieces, [SEP]."""
        plan = [(text, window) for text, each in enumerate(ids) for window in windows(len(each), self._room)]
        parts: list[list[Tensor]] = [[] for _ in ids]
        for begin in range(0, len(plan), BATCH_SIZE):
            rows = plan[begin : begin + BATCH_SIZE]
            states = self._forward([ids[text][window.begin : window.end] for text, window in rows])
            for (text, window), state in zip(rows, states, strict=True):
                # [CLS] is the first window's, [SEP] the last one's.
                first = 0 if window.begin == 0 else window.own_begin - window.begin + 1
                last = window.own_end - window.begin + 1 + (window.end == len(ids[text]))
                parts[text].append(state[first:last])
        return map(torch.cat, parts)

    def _forward(self, rows: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """Float32 [2 + pieces, D] of each row, on the CPU."""
        tokenizer, lengths = self.tokenizer, [len(row) + 2 for row in rows]
        packed = torch.tensor([i for row in rows for i in (tokenizer.cls_id, *row, tokenizer.sep_id)])
        batch = Batch.from_lengths(packed, torch.zeros_like(packed), torch.tensor(lengths))
        with evaluating(self.bert):
            states = self.bert.hidden_states(batch.to(self.bert.embeddings.word_embeddings.weight.device))
            known = dict(enumerate(islice(states, max(self.layers) + 1)))
            chosen = [known[layer].float() for layer in self.layers]
            joined = torch.cat(chosen, -1) if self.combine == "concat" else torch.stack(chosen).mean(0)
        return torch.split(joined.cpu(), lengths)


def _means(states: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each run of ``lengths`` rows, zeros for a run of none: [T, D], [W] -> [W, D]."""
    word = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sums = torch.zeros(len(lengths), states.shape[1]).index_add_(0, word, states)
    return sums / lengths.clamp(min=1)[:, None]


def json_lines(embeddings: Iterator[Embedding], pooling: Pooling) -> Iterator[str]:
    """One JSON object for each text."""
    for embedding in embeddings:
        yield json.dumps(embedding.as_dict(pooling), ensure_ascii=False)


def write_npz(path: Path, embeddings: Iterator[Embedding], pooling: Pooling) -> tuple[int, int]:
    """Write all vectors to a NumPy archive; returns the shape of ``vectors``.

    ``vectors`` is float32 [N, D], one row for each text or, by ``word``, for each word of all texts; then also
    ``words`` [N], ``text`` int64 [N] (number of the text, from 0) and ``without_pieces`` bool [N].
    """
    found = list(embeddings)
    width = next((each.vectors.shape[1] for each in found), 0)
    vectors = np.concatenate([np.empty((0, width), np.float32), *(each.vectors for each in found)])
    arrays: dict[str, NDArray[Any]] = {"vectors": vectors}
    if pooling == "word":
        arrays["words"] = np.array([word for each in found for word in each.words], np.str_)
        arrays["text"] = np.repeat(np.arange(len(found)), [len(each.words) for each in found])
        arrays["without_pieces"] = np.concatenate([np.empty(0, np.bool_), *(each.without_pieces for each in found)])
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    write_file(path, content.getbuffer())
    return vectors.shape[0], vectors.shape[1]

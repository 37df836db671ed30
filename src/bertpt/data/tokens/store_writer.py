"""Writing a token store as it is made: memory does not grow with the corpus."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertpt.data.stage import SPLITS, Split
from bertpt.data.tokens.store import LENGTH_DTYPE, OFFSET_DTYPE, SOURCE_DTYPE, id_dtype, offsets


class SplitWriter:
    """Appends documents of one split. ``close`` makes the files complete."""

    def __init__(self, directory: Path, split: Split, vocab_size: int) -> None:
        self._dtype = id_dtype(vocab_size)
        self._files: dict[str, BinaryIO] = {
            kind: (directory / f"{split}.{kind}.bin").open("wb")
            for kind in ("ids", "lengths", "documents", "starts", "sources")
        }
        self.tokens = self.sentences = self.documents = 0
        self.unigram = np.zeros(vocab_size, OFFSET_DTYPE)
        self.sources = np.zeros(256, np.int64)
        for kind in ("documents", "starts"):
            self._put(kind, np.zeros(1, OFFSET_DTYPE))

    def add(
        self,
        ids: NDArray[Any],
        sentence_lengths: NDArray[Any],
        document_sizes: NDArray[Any],
        sources: NDArray[np.uint8],
    ) -> None:
        """Append whole documents.

        Args:
            ids: integers [tokens], the sentences one after the other.
            sentence_lengths: integers [sentences], tokens in each; above 0 and below 65,536.
            document_sizes: integers [documents], sentences in each; all above 0.
            sources: uint8 [documents], index of each one's source.
        """
        of_sentences, of_documents = offsets(sentence_lengths), offsets(document_sizes)
        if of_sentences[-1] != len(ids) or of_documents[-1] != len(sentence_lengths):
            raise AssertionError("lengths do not add up")
        if len(sources) != len(document_sizes) or not ((sentence_lengths > 0).all() and (document_sizes > 0).all()):
            raise AssertionError("an empty sentence or document, or sources of another number")
        if len(sentence_lengths) and int(sentence_lengths.max()) > np.iinfo(LENGTH_DTYPE).max:
            raise AssertionError("a sentence too long for its length to be stored")
        self._put("ids", ids.astype(self._dtype))
        self._put("lengths", sentence_lengths.astype(LENGTH_DTYPE))
        self._put("documents", self.sentences + of_documents[1:])
        self._put("starts", self.tokens + of_sentences[of_documents[1:]])
        self._put("sources", sources.astype(SOURCE_DTYPE))
        self.tokens += len(ids)
        self.sentences += len(sentence_lengths)
        self.documents += len(document_sizes)
        self.unigram += np.bincount(ids, minlength=len(self.unigram))
        self.sources += np.bincount(sources, minlength=256)

    def _put(self, kind: str, values: NDArray[Any]) -> None:
        self._files[kind].write(np.ascontiguousarray(values).data)

    def close(self) -> None:
        """Flush and close the files."""
        for file in self._files.values():
            file.close()


class StoreWriter:
    """Writers of both splits and the two arrays over the vocabulary."""

    def __init__(self, directory: Path, continues_word: NDArray[np.bool_]) -> None:
        self._directory = directory
        self._continues_word = continues_word
        self._splits = {split: SplitWriter(directory, split, len(continues_word)) for split in SPLITS}

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._splits.values():
            writer.close()
        if error is None:
            (self._directory / "unigram.bin").write_bytes(self._splits["train"].unigram.astype(OFFSET_DTYPE).tobytes())
            (self._directory / "words.bin").write_bytes(self._continues_word.astype(np.uint8).tobytes())

    def split(self, name: Split) -> SplitWriter:
        """The writer of that split."""
        return self._splits[name]

"""The token store: sentences as WordPiece ids, once, for every length, pair rule and mask.

Layout of the folder, for each split (``train``, ``heldout``), little endian:

==========================  =======  ==================  ====================================================
file                        dtype    shape               content
==========================  =======  ==================  ====================================================
``<split>.ids.bin``         uint16*  [tokens]            pieces of all sentences, no special tokens
``<split>.lengths.bin``     uint16   [sentences]         tokens in each sentence
``<split>.documents.bin``   int64    [documents + 1]     offsets of the documents into the sentences
``<split>.starts.bin``      int64    [documents + 1]     offsets of the documents into the ids
``<split>.sources.bin``     uint8    [documents]         index into the list of source labels
``unigram.bin``             int64    [vocab_size]        how often each id stands in ``train``
``words.bin``               uint8    [vocab_size]        1 where the piece continues a word (``##``)
==========================  =======  ==================  ====================================================

(*) uint32 when the vocabulary is above 65,536. No sentence and no document is empty, and a document's
sentences stand one after the other, so that every segment of a row is one span of ids. Sentences are kept as lengths:
2 bytes each where offsets take 8, up to a tenth of the text. Any document is found at once, its sentences by adding up
its lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.data.stage import SPLITS, Split
from bertpt.errors import RequestError
from bertpt.files import read_manifest

STORE_FORMAT = 2  # part of the store's key: another one is made anew, beside the old
OFFSET_DTYPE = np.dtype("<i8")
LENGTH_DTYPE = np.dtype("<u2")
SOURCE_DTYPE = np.dtype("u1")


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """Smallest of uint16 and uint32 that holds every id."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    """int64 [n + 1]: where each of n neighbours begins, and where the last ends."""
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found


@dataclass(frozen=True, slots=True)
class Tokens:
    """One split, memory-mapped. Field shapes and dtypes as in the module's table."""

    ids: NDArray[Any]
    lengths: NDArray[np.uint16]
    documents: NDArray[np.int64]
    document_starts: NDArray[np.int64]
    sources: NDArray[np.uint8]

    @classmethod
    def build(cls, ids: NDArray[Any], lengths: NDArray[Any], sizes: NDArray[Any], sources: NDArray[Any]) -> Tokens:
        """A split in memory, from the tokens of each sentence and the sentences of each document."""
        documents = offsets(sizes)
        starts = offsets(lengths)[documents]
        return cls(ids, lengths.astype(LENGTH_DTYPE), documents, starts, sources.astype(SOURCE_DTYPE))

    def sentence_offsets(self) -> NDArray[np.int64]:
        """int64 [sentences + 1]: offsets into the ids, added up now; 8 bytes of memory for each sentence."""
        return offsets(self.lengths)


@dataclass(frozen=True, slots=True)
class TokenStore:
    """An opened store. Opening reads the manifest only; the arrays are memory maps."""

    directory: Path
    manifest: dict[str, Any]
    train: Tokens
    heldout: Tokens

    @classmethod
    def open(cls, directory: Path) -> TokenStore:
        """Open a finished store.

        Raises:
            RequestError: no finished store there, one of another format, or its files do not have the sizes that
                the manifest says.
        """
        manifest = read_manifest(directory)
        if manifest is None or manifest["stage"] != "prepare":
            raise RequestError(f"{directory}: no finished token store; `bertpt prepare` makes it")
        if (found := manifest["settings"].get("format", 1)) != STORE_FORMAT:
            raise RequestError(
                f"{directory}: a token store of format {found}, this bertpt reads format {STORE_FORMAT};"
                " `bertpt prepare` makes a new one beside it"
            )
        dtype = id_dtype(manifest["settings"]["vocab_size"])
        train, heldout = (
            Tokens(
                ids=_map(directory / f"{split}.ids.bin", dtype),
                lengths=_map(directory / f"{split}.lengths.bin", LENGTH_DTYPE),
                documents=_map(directory / f"{split}.documents.bin", OFFSET_DTYPE),
                document_starts=_map(directory / f"{split}.starts.bin", OFFSET_DTYPE),
                sources=_map(directory / f"{split}.sources.bin", SOURCE_DTYPE),
            )
            for split in SPLITS
        )
        return cls(directory, manifest, train, heldout)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled memory map is a copy of its content: workers open the store themselves.
        return TokenStore.open, (self.directory,)

    def split(self, name: Split) -> Tokens:
        """The split of that name."""
        return self.train if name == "train" else self.heldout

    @property
    def vocab_size(self) -> int:
        """Number of entries of the vocabulary."""
        return int(self.manifest["settings"]["vocab_size"])

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of ``pad``, ``unk``, ``cls``, ``sep``, ``mask``."""
        return dict(self.manifest["settings"]["special_ids"])

    @property
    def source_labels(self) -> list[str]:
        """Labels that ``Tokens.sources`` indexes."""
        return list(self.manifest["settings"]["sources"])

    @property
    def unigram(self) -> NDArray[np.int64]:
        """int64 [vocab_size]: how often each id stands in the training text."""
        return _map(self.directory / "unigram.bin", OFFSET_DTYPE)

    @property
    def continues_word(self) -> NDArray[np.bool_]:
        """Bool [vocab_size]: True where a piece continues a word."""
        return np.asarray(_map(self.directory / "words.bin", np.dtype("u1")), dtype=np.bool_)


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:  # numpy refuses to map an empty file
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")

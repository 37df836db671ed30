"""The token store: sentences as WordPiece ids, once, for every length, pair rule and mask.

Layout of the folder, for each split (``train``, ``heldout``), little endian:

==========================  =======  ==================  ====================================================
file                        dtype    shape               content
==========================  =======  ==================  ====================================================
``<split>.ids.bin``         uint16*  [tokens]            pieces of all sentences, no special tokens
``<split>.sentences.bin``   int64    [sentences + 1]     offsets into the ids
``<split>.documents.bin``   int64    [documents + 1]     offsets into the sentences
``<split>.sources.bin``     uint8    [documents]         index into the list of source labels
``unigram.bin``             int64    [vocab_size]        how often each id stands in ``train``
``words.bin``               uint8    [vocab_size]        1 where the piece continues a word (``##``)
==========================  =======  ==================  ====================================================

(*) uint32 when the vocabulary is above 65,535. No sentence and no document is empty, and a document's
sentences stand one after the other, so that every segment of a row is one span of ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertpt.errors import RequestError
from bertpt.files import read_manifest

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
OFFSET_DTYPE = np.dtype("<i8")


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """Smallest of uint16 and uint32 that holds every id."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class Tokens:
    """One split, memory-mapped. Field shapes and dtypes as in the module's table."""

    ids: NDArray[Any]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    sources: NDArray[np.uint8]

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """int64 [documents + 1]: offsets of the documents into the ids."""
        return self.sentences[self.documents]


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
            RequestError: no finished store there, or its files do not have the sizes that the manifest says.
        """
        manifest = read_manifest(directory)
        if manifest is None or manifest["stage"] != "prepare":
            raise RequestError(f"{directory}: no finished token store; `bertpt prepare` makes it")
        dtype = id_dtype(manifest["settings"]["vocab_size"])
        train, heldout = (
            Tokens(
                ids=_map(directory / f"{split}.ids.bin", dtype),
                sentences=_map(directory / f"{split}.sentences.bin", OFFSET_DTYPE),
                documents=_map(directory / f"{split}.documents.bin", OFFSET_DTYPE),
                sources=_map(directory / f"{split}.sources.bin", np.dtype("u1")),
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

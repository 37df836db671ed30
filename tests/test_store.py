"""The token store on disk: its arrays, its size, what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from stage_helpers import sign_manifest
from store_helpers import as_documents, make_store, make_tokens, random_documents

from bertpt.data.tokens.store import Tokens, TokenStore, offsets
from bertpt.data.tokens.store_writer import StoreWriter
from bertpt.errors import RequestError


def test_what_is_written_is_read_and_any_document_is_found_at_once(tmp_path: Path) -> None:
    train, heldout = random_documents(40, seed=1), random_documents(7, seed=2)
    store = make_store(tmp_path, train, heldout)
    assert as_documents(store.train) == train
    assert as_documents(store.heldout) == heldout
    for number in (0, 17, 39):
        first, last = store.train.documents[number : number + 2]
        inner = offsets(store.train.lengths[first:last]) + store.train.document_starts[number]
        assert [store.train.ids[a:b].tolist() for a, b in pairwise(inner)] == train[number]


def test_a_sentence_takes_two_bytes_beside_its_ids(tmp_path: Path) -> None:
    documents = random_documents(3, sentences=(500, 600))
    store = make_store(tmp_path, documents)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    sentences, tokens = sum(map(len, documents)), sum(len(sentence) for d in documents for sentence in d)
    assert sizes["train.lengths.bin"] == 2 * sentences
    assert sizes["train.ids.bin"] == 2 * tokens
    assert sizes["train.documents.bin"] == sizes["train.starts.bin"] == 8 * 4
    assert store.train.lengths.dtype == np.uint16


def test_several_additions_make_one_split(tmp_path: Path) -> None:
    whole = make_tokens(random_documents(30, seed=3))
    with StoreWriter(tmp_path, np.zeros(100, np.bool_)) as writer:
        for first in range(0, 30, 7):
            last = min(first + 7, 30)
            sentences = slice(whole.documents[first], whole.documents[last])
            ids = whole.ids[whole.document_starts[first] : whole.document_starts[last]]
            sizes = np.diff(whole.documents[first : last + 1])
            writer.split("train").add(ids, whole.lengths[sentences], sizes, whole.sources[first:last])
    for name, array in (("documents", whole.documents), ("starts", whole.document_starts), ("ids", whole.ids)):
        assert np.fromfile(tmp_path / f"train.{name}.bin", array.dtype).tolist() == array.tolist()


def test_a_length_that_does_not_fit_is_never_written(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, np.zeros(100, np.bool_)) as writer:
        one = np.ones(1, np.int64)
        writer.split("train").add(np.full(65_535, 5), 65_535 * one, one, np.zeros(1, np.uint8))
        with pytest.raises(AssertionError, match="too long"):
            writer.split("train").add(np.full(65_536, 5), 65_536 * one, one, np.zeros(1, np.uint8))


@pytest.mark.parametrize("found", [None, 1, 3])
def test_a_store_of_another_format_is_refused_with_what_to_do(tmp_path: Path, found: int | None) -> None:
    make_store(tmp_path, random_documents(4))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["settings"].pop("format")
    manifest["settings"] |= {} if found is None else {"format": found}
    sign_manifest(tmp_path, manifest)
    with pytest.raises(RequestError, match=rf"format {found or 1}, this bertpt reads format 2; `bertpt prepare` makes"):
        TokenStore.open(tmp_path)


def test_an_empty_split_has_no_sentences() -> None:
    empty = Tokens.build(*[np.empty(0, np.int64)] * 4)
    assert empty.sentence_offsets().tolist() == empty.documents.tolist() == empty.document_starts.tolist() == [0]

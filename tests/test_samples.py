"""The held-out sentences that a run shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_helpers import make_store, random_documents
from tokenizers import Tokenizer, models

from bertpt.data.tokenizer.wordpiece import SPECIALS, WordPieceTokenizer
from bertpt.train.reports.samples import masked_sentences

VOCAB = [*SPECIALS, *(f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrs")]


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    vocab = {token: index for index, token in enumerate(VOCAB)}
    return WordPieceTokenizer(Tokenizer(models.WordPiece(vocab, unk_token="[UNK]")))


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [((1, 40), (10, 24)), ((3, 8), (6, 8)), ((3, 3), (3, 3))],
    ids=["as in English", "short ones", "all alike"],
)
def test_sentences_of_a_fitting_length_are_shown(
    tokenizer: WordPieceTokenizer, tmp_path: Path, tokens: tuple[int, int], wanted: tuple[int, int]
) -> None:
    documents = random_documents(60, vocab_size=len(VOCAB), sentences=(2, 6), tokens=tokens)
    store = make_store(tmp_path / "s", documents[:4], documents, vocab_size=len(VOCAB))
    found = list(masked_sentences(tokenizer, store, count=5))
    assert len(found) == 5
    assert all(wanted[0] <= len(sentence.ids) <= wanted[1] for sentence in found)
    assert all(sentence.ids.count(tokenizer.mask_id) == 1 for sentence in found)
    assert found == list(masked_sentences(tokenizer, store, count=5))
    known = {tuple(sentence) for document in documents for sentence in document}
    for sentence in found:
        ids = np.array(sentence.ids)
        ids[ids == tokenizer.mask_id] = VOCAB.index(sentence.original)
        assert tuple(ids.tolist()) in known


def test_a_text_of_single_words_shows_none(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    documents = random_documents(20, vocab_size=len(VOCAB), sentences=(2, 6), tokens=(1, 2))
    store = make_store(tmp_path / "s", documents[:4], documents, vocab_size=len(VOCAB))
    assert not list(masked_sentences(tokenizer, store, count=3))

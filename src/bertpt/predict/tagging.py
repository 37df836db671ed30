"""What ``bertpt predict ner`` and ``tagging`` are given: texts to split into words, or files of words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bertpt.config import FinetuneConfig
from bertpt.config.finetune.tagging import TaggingConfig
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.predict.texts import Text
from bertpt.tasks.examples import refuse
from bertpt.tasks.tagging.tagged import Sentence, format_of, read_sentences

_OF_WORDS = re.compile(r"\.(conll|conllu|iob|bio|jsonl|ndjson|parquet|pq)(\.(gz|bz2|xz|zst|zstd))?$", re.IGNORECASE)
_WHITE_SPACE = re.compile(r"\S+")


def holds_words(path: Path) -> bool:
    """Whether a file holds sentences in words, by its ending (``.conll``, ``.jsonl`` ...), not lines of text."""
    return _OF_WORDS.search(path.name) is not None


def split_texts(texts: Sequence[Text], tokenizer: WordPieceTokenizer, *, punctuation: bool) -> list[Sentence]:
    """Sentences whose tags are not known; one without words has none.

    Args:
        texts: each with the name that a fault calls it by.
        tokenizer: says what punctuation is.
        punctuation: whether punctuation marks are words of their own; else white space alone parts words.
    """
    found = []
    for place, text in texts:
        if punctuation:
            spans = tokenizer.word_spans(text)
        else:
            spans = [match.span() for match in _WHITE_SPACE.finditer(text)]
        words = tuple(text[begin:end] for begin, end in spans)
        found.append(Sentence(place, words, text=text, starts=tuple(begin for begin, _ in spans)))
    return found


def read_words(path: Path, config: FinetuneConfig) -> list[Sentence]:
    """The sentences of a file; tags in it are not looked at.

    Args:
        path: of the file; its ending tells its format.
        config: of the run; the column of the words is as it was in train where the format is the same.

    Raises:
        RequestError: it cannot be read, or is malformed.
    """
    assert isinstance(config, TaggingConfig)
    data = config.data
    own = data.model_copy(update={"format": "auto"})
    if format_of(path, own) != format_of(Path(data.train), data):
        own = own.model_copy(update={"token": None})
    found = read_sentences(path, own, entities=False, known=False)
    refuse(found.faults)
    return list(found.rows)

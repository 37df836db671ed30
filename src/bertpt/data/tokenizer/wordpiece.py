"""WordPiece tokenizers: the wrapper that all other modules use, and the Hugging Face folder layout.

A tokenizer folder holds ``tokenizer.json`` (the whole tokenizer), ``vocab.txt`` (line n = id n - 1),
``tokenizer_config.json`` and ``special_tokens_map.json``. Only ``tokenizer.json`` is read back here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertpt.errors import BertptError, RequestError
from bertpt.files import write_file, write_json

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
MAX_WORD_LETTERS = 100  # longer words are one [UNK], as in every released BERT
DEFAULT_MAX_LENGTH = 512
# Chunks kept with their ids, about 25 MB; letters bound it for scripts that put no space between words.
_CACHE_ENTRIES = 150_000
_CACHE_LETTERS = 8_000_000

# str.split() breaks words at these, the BERT normaliser removes them and joins what stands around.
_REMOVED = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# What the BERT normaliser puts spaces around; all else between two of them is one word.
_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
_IDEOGRAPHS = re.compile(f"[{_CJK}]|[^{_CJK}]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


@contextlib.contextmanager
def library_faults(doing: str) -> Iterator[None]:
    """Turn a fault inside the tokenizers library into one line.

    A panic of its Rust code derives from BaseException, so that ``except Exception`` would miss it.
    """
    try:
        yield
    except (BertptError, OSError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BertptError(f"{doing}: the tokenizers library failed: {reason}") from error


@dataclass(frozen=True, slots=True)
class Normalising:
    """What happens to letters before words are split; stored in the tokenizer folder."""

    lowercase: bool = True
    strip_accents: bool = True
    handle_chinese_chars: bool = True

    def normalizer(self) -> normalizers.Normalizer:
        """The library's BERT normaliser with each flag given explicitly."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.handle_chinese_chars,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )


def clean(text: str) -> str:
    """Replace lone surrogates, which the library refuses, by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def chunks(text: str) -> list[str]:
    """Split at white space exactly where the BERT normaliser and pre-tokeniser do.

    Neither looks across white space, so that chunks can be counted and encoded one by one.
    """
    return (_REMOVED.sub("", text) if _REMOVED.search(text) else text).split()


def build(tokens: Sequence[str], normalising: Normalising) -> Tokenizer:
    """A library tokenizer whose ids are the positions of ``tokens``."""
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocab,
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_WORD_LETTERS,
            continuing_subword_prefix=PREFIX,
        )
    )
    tokenizer.normalizer = normalising.normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def save(
    directory: Path, tokens: Sequence[str], normalising: Normalising, *, max_length: int = DEFAULT_MAX_LENGTH
) -> None:
    """Write the four files of the Hugging Face layout into ``directory``.

    Args:
        directory: is made when it is not there.
        tokens: in the order of their ids.
        normalising: what happens to text before it is split.
        max_length: the model's positions, where other programs cut text off.
    """
    write_file(directory / "tokenizer.json", build(tokens, normalising).to_str(pretty=True) + "\n")
    write_file(directory / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    write_json(directory / "special_tokens_map.json", names)
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalising.lowercase,
        "strip_accents": normalising.strip_accents,
        "tokenize_chinese_chars": normalising.handle_chinese_chars,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": True,
    }
    write_json(directory / "tokenizer_config.json", settings | names)


class WordPieceTokenizer:
    """Text to ids and back. Ids never include [CLS] and [SEP]; whoever builds rows adds those."""

    def __init__(self, backend: Tokenizer, place: str = "tokenizer") -> None:
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        # Text that reads "[SEP]" is words; a special id never comes out of text.
        self._backend.encode_special_tokens = True
        vocab = backend.get_vocab(with_added_tokens=True)
        self.tokens = check_vocabulary(vocab, place)
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (vocab[token] for token in SPECIALS)
        self._cache: dict[str, bytes] = {}  # ids as int32: 40 bytes less for each chunk than in a list
        self._cache_letters = 0

    @property
    def vocab_size(self) -> int:
        """Number of entries."""
        return len(self.tokens)

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids by name: ``pad``, ``unk``, ``cls``, ``sep``, ``mask``."""
        return {
            "pad": self.pad_id,
            "unk": self.unk_id,
            "cls": self.cls_id,
            "sep": self.sep_id,
            "mask": self.mask_id,
        }

    @property
    def continues_word(self) -> NDArray[np.bool_]:
        """Mask over the vocabulary, bool [vocab_size]: True where a piece continues a word."""
        return np.array([len(token) > len(PREFIX) and token.startswith(PREFIX) for token in self.tokens], np.bool_)

    def token(self, index: int) -> str:
        """The entry of that id."""
        return self.tokens[index]

    def encode_flat(self, sentences: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Ids of all sentences, int32 [tokens], and how many each sentence has, int64 [sentences].

        Without special tokens. Equal to the library's ``encode`` of each sentence, but each distinct chunk is encoded
        once.
        """
        split = [chunks(sentence) for sentence in sentences]
        self._learn(split)
        cache = self._cache
        made = [b"".join([cache[chunk] for chunk in parts]) for parts in split]
        lengths = np.fromiter(map(len, made), np.int64, len(made)) // np.int32().itemsize
        return np.frombuffer(b"".join(made), np.int32), lengths

    def encode_sentences(self, sentences: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode_flat`, a list for each sentence; a sentence of no pieces gives an empty one."""
        ids, lengths = self.encode_flat(sentences)
        ends = itertools.accumulate(lengths.tolist(), initial=0)
        flat = ids.tolist()
        return [flat[begin:end] for begin, end in itertools.pairwise(ends)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Ids of each text, int32 [n], and where each piece stands in it, int64 [n, 2]: first character, and end.

        The ids are those of :meth:`encode_sentences`. What the normaliser removes (an accent, a zero-width character)
        is no part of a piece where it stands at its end; pieces of one composed character share it.
        """
        with library_faults("encoding"):
            encoded = self._backend.encode_batch([clean(text) for text in texts], add_special_tokens=False)
        return [(np.array(found.ids, np.int32), np.array(found.offsets, np.int64).reshape(-1, 2)) for found in encoded]

    def unknown_chunks(self, sentence: str) -> list[str]:
        """What stands between white space and holds a word that is [UNK], in the order of the text."""
        parts = chunks(sentence)
        self._learn([parts])
        return [part for part in parts if self.unk_id in memoryview(self._cache[part]).cast("i")]

    def unknown_words(self, text: str) -> list[str]:
        """The text's words (normalised) that are [UNK]."""
        words = self.words(text)
        return [word for word, ids in zip(words, self.encode_sentences(words), strict=True) if self.unk_id in ids]

    def _learn(self, split: Sequence[Sequence[str]]) -> None:
        if len(self._cache) > _CACHE_ENTRIES or self._cache_letters > _CACHE_LETTERS:
            # Frequent chunks were met first. (To forget all of them now and then did not lower the peak.)
            self._cache = dict(itertools.islice(self._cache.items(), _CACHE_ENTRIES // 2))
            self._cache_letters = sum(map(len, self._cache))
            if self._cache_letters > _CACHE_LETTERS // 2:
                self._cache, self._cache_letters = {}, 0
        new = list(dict.fromkeys(chunk for parts in split for chunk in parts if chunk not in self._cache))
        if not new:
            return
        with library_faults("encoding"):
            encoded = self._backend.encode_batch_fast([clean(chunk) for chunk in new], add_special_tokens=False)
        self._cache_letters += sum(map(len, new))
        for chunk, encoding in zip(new, encoded, strict=True):
            self._cache[chunk] = array("i", encoding.ids).tobytes()

    def encode_with_mask(self, text: str) -> list[int]:
        """Ids of a text in which ``[MASK]`` (and no other special) is the mask token."""
        parts = self.encode_sentences(text.split("[MASK]"))
        return [index for part in parts for index in [self.mask_id, *part]][1:]

    def words(self, text: str) -> list[str]:
        """The text's words after normalising, as WordPiece sees them."""
        with library_faults("splitting words"):
            normal = self._normalizer.normalize_str(clean(text))
            return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normal)]

    def surface_words(self, text: str, *, punctuation: bool = True) -> list[str]:
        """The text's words as they stand in it, so that each can be shown beside what was made of it.

        Encoding them one by one gives the ids of the whole text. A word may have no pieces at all (an accent alone).

        Args:
            text: any text.
            punctuation: whether punctuation marks are words of their own; else white space alone parts words.
        """
        parts = chunks(clean(text))
        if not punctuation:
            return parts
        with library_faults("splitting words"):
            return [word for part in parts for word, _ in self._pre_tokenizer.pre_tokenize_str(part)]

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """Where the text's words begin and end, punctuation marks and Chinese characters being words of their own."""
        with library_faults("splitting words"):
            found = self._pre_tokenizer.pre_tokenize_str(clean(text))
        spans = []
        for _, (begin, end) in found:
            spans += [(begin + match.start(), begin + match.end()) for match in _IDEOGRAPHS.finditer(text[begin:end])]
        return spans

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; special tokens are shown."""
        with library_faults("decoding"):
            return str(self._backend.decode([int(index) for index in ids], skip_special_tokens=False))


def check_vocabulary(vocab: dict[str, int], place: str) -> list[str]:
    """Tokens in the order of their ids.

    Raises:
        RequestError: a special token is missing, or the ids are not 0, 1, 2, ...
    """
    missing = [token for token in SPECIALS if token not in vocab]
    if missing:
        raise RequestError(f"{place}: lacks {', '.join(missing)}; a BERT vocabulary holds {', '.join(SPECIALS)}")
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise RequestError(f"{place}: ids are not 0 to {len(tokens) - 1} without gaps or repeats")
    return tokens


def read_backend(path: Path) -> Tokenizer:
    """Load a ``tokenizer.json``; a fault names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: not readable: {error}") from error
    try:
        with library_faults(str(path)):
            return Tokenizer.from_str(text)
    except BertptError as error:
        raise RequestError(str(error)) from error


def read_normalising(backend: Tokenizer, path: Path) -> Normalising:
    """The flags of a WordPiece ``tokenizer.json``.

    Raises:
        RequestError: it is not a BERT tokenizer, or splits or cleans text in another way.
    """
    state: dict[str, Any] = json.loads(backend.to_str())
    normalizer, pre, model = state["normalizer"] or {}, state["pre_tokenizer"] or {}, state["model"]
    expected = {
        "model.type": (model.get("type", "WordPiece"), "WordPiece"),
        "model.unk_token": (model.get("unk_token"), "[UNK]"),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), PREFIX),
        "model.max_input_chars_per_word": (model.get("max_input_chars_per_word"), MAX_WORD_LETTERS),
        "normalizer.type": (normalizer.get("type"), "BertNormalizer"),
        "normalizer.clean_text": (normalizer.get("clean_text"), True),
        "pre_tokenizer.type": (pre.get("type"), "BertPreTokenizer"),
    }
    faults = [
        f"{path}: {key} is {got!r}, only {want!r} is supported" for key, (got, want) in expected.items() if got != want
    ]
    if faults:
        raise RequestError(faults)
    lowercase, accents = bool(normalizer["lowercase"]), normalizer["strip_accents"]
    return Normalising(lowercase, lowercase if accents is None else bool(accents), normalizer["handle_chinese_chars"])


def load_tokenizer(directory: Path) -> WordPieceTokenizer:
    """Open a tokenizer folder.

    Raises:
        RequestError: no ``tokenizer.json`` there, it is damaged, or it is not a BERT tokenizer.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise RequestError(f"{directory}: no tokenizer.json; `bertpt train-tokenizer` makes one")
    backend = read_backend(path)
    read_normalising(backend, path)
    return WordPieceTokenizer(backend, str(path))

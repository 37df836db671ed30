"""Reading a vocabulary that the user brings: a ``vocab.txt`` or a tokenizer folder."""

from __future__ import annotations

from pathlib import Path

from bertpt.config import Config
from bertpt.config.schema import Tokenizer as TokenizerConfig
from bertpt.data.tokenizer.wordpiece import Normalising, check_vocabulary, read_backend, read_normalising
from bertpt.errors import RequestError
from bertpt.files import read_json, sha256_file

_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")


def normalising_of(config: TokenizerConfig) -> Normalising:
    """The configured flags; accents are stripped when letters are lower-cased, unless said otherwise."""
    accents = config.lowercase if config.strip_accents is None else config.strip_accents
    return Normalising(config.lowercase, accents, config.handle_chinese_chars)


def tokenizer_of_weights(place: Path) -> Path:
    """The tokenizer folder of a run, a checkpoint, or a directory that holds a model and its tokenizer."""
    of_run = [place.parents[1] / "tokenizer"] if place.absolute().parent.name == "checkpoints" else []
    return next((folder for folder in (place / "tokenizer", place, *of_run) if holds_vocabulary(folder)), place)


def holds_vocabulary(folder: Path) -> bool:
    """Whether a folder holds a tokenizer that can be read."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


def given_place(config: Config) -> Path | None:
    """Where a given vocabulary lies: ``tokenizer.from``, else beside the weights of ``model.init_from``."""
    if config.tokenizer.from_ is not None:
        return Path(config.tokenizer.from_)
    return None if config.model.init_from is None else tokenizer_of_weights(Path(config.model.init_from))


def given_hashes(path: Path, key: str = "tokenizer.from") -> dict[str, str]:
    """SHA-256 of each file that ``read_given`` would read.

    Args:
        path: a vocabulary or a tokenizer folder.
        key: the setting that names it, for the error.

    Raises:
        RequestError: there is no vocabulary at ``path``.
    """
    if path.is_file():
        return {"vocab.txt": sha256_file(path)}
    hashes = {name: sha256_file(path / name) for name in _FILES if (path / name).is_file()}
    if not {"tokenizer.json", "vocab.txt"} & set(hashes):
        what = "neither tokenizer.json nor vocab.txt in this folder" if path.is_dir() else "no such file or folder"
        raise RequestError(f"{key}: {path}: {what}")
    return hashes


def read_given(path: Path, config: TokenizerConfig) -> tuple[list[str], Normalising]:
    """Tokens in the order of their ids, and the flags.

    Flags come from ``tokenizer.json``, else from ``tokenizer_config.json``, else from the configuration.

    Raises:
        RequestError: a file is damaged, a special token is missing, or it is not a BERT tokenizer.
    """
    if path.is_dir() and (path / "tokenizer.json").is_file():
        source = path / "tokenizer.json"
        backend = read_backend(source)
        return check_vocabulary(backend.get_vocab(with_added_tokens=True), str(source)), read_normalising(
            backend, source
        )
    flags = normalising_of(config)
    if path.is_dir():
        if (path / "tokenizer_config.json").is_file():
            flags = _flags(path / "tokenizer_config.json")
        path = path / "vocab.txt"
    return read_vocab(path), flags


def _flags(path: Path) -> Normalising:
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise RequestError(f"{path}: a JSON object expected")
    lowercase = bool(settings.get("do_lower_case", True))
    accents = settings.get("strip_accents")
    return Normalising(
        lowercase, lowercase if accents is None else bool(accents), bool(settings.get("tokenize_chinese_chars", True))
    )


def read_vocab(path: Path) -> list[str]:
    r"""Tokens of a ``vocab.txt``: line n is id n - 1, lines end in ``\n`` or ``\r\n``.

    Raises:
        RequestError: not UTF-8, an empty or repeated line (ids after it would be shifted), or a special is missing.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: not readable as UTF-8 text: {error}") from error
    tokens = [line.removesuffix("\r") for line in lines[: -1 if not lines[-1] else None]]
    vocab: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not token or token in vocab:
            what = f"{token!r} stands on line {vocab[token] + 1} too" if token else "empty line"
            raise RequestError(f"{path}: line {index + 1}: {what}")
        vocab[token] = index
    return check_vocabulary(vocab, str(path))

"""Where each stage's result lies: functions of the configuration and the manifests on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertpt.config import Config
from bertpt.config.languages import language_code
from bertpt.data.corpus.cached import downloads_dir, to_download
from bertpt.data.stage import stage_key
from bertpt.data.tokenizer.extend import words_hash
from bertpt.data.tokenizer.given import given_hashes, given_place, normalising_of
from bertpt.data.tokens.store import STORE_FORMAT
from bertpt.errors import RequestError
from bertpt.files import fingerprint, read_manifest

ID_DIGITS = 8


def corpus_dir(config: Config) -> Path:
    """The corpus's folder under ``data_dir``."""
    return Path(config.data_dir) / config.corpus.folder


def documents_dir(config: Config) -> Path:
    """Where ``bertpt download`` leaves its documents."""
    return corpus_dir(config) / "documents"


_STAGES = ("download", "train-tokenizer", "prepare")


def finished(config: Config, directory: Path, command: str) -> dict[str, Any]:
    """The manifest of a stage that has to be finished.

    Raises:
        RequestError: it is not; the line names the commands that make what is missing, with what they download.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        commands = [f"`bertpt {stage}`" for stage in _STAGES[_STAGES.index(command) :]]
        downloads = downloads_dir(config.data_dir)
        sizes = [size for source in config.corpus.sources if (size := to_download(source, downloads))]
        if command == "download" and sizes:
            commands[0] += f" ({' + '.join(sizes)} to download)"
        make = f"{commands[0]} makes it" if len(commands) == 1 else f"{', '.join(commands)} make what is missing"
        raise RequestError(f"{directory}: not there yet; {make}, `bertpt run` makes all")
    return manifest


def tokenizer_key(config: Config) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Key, settings and inputs of the tokenizer stage.

    Raises:
        RequestError: the documents, or the given vocabulary, are missing.
    """
    chosen, flags = config.tokenizer, normalising_of(config.tokenizer)
    settings: dict[str, Any] = {
        "lowercase": flags.lowercase,
        "strip_accents": flags.strip_accents,
        "handle_chinese_chars": flags.handle_chinese_chars,
    }
    if (given := given_place(config)) is not None:
        hashes = given_hashes(given, "model.init_from" if chosen.from_ is None else "tokenizer.from")
        settings = settings if list(hashes) == ["vocab.txt"] else {}
        inputs = {"given": fingerprint(hashes)}
        if chosen.extend_from is not None:
            inputs["words"] = words_hash(Path(chosen.extend_from))
    else:
        inputs = {"documents": finished(config, documents_dir(config), "download")["fingerprint"]}
        for name in ("vocab_size", "min_frequency", "sample_bytes", "seed"):
            settings[name] = getattr(chosen, name)
    return stage_key("train-tokenizer", settings, inputs), settings, inputs


def tokenizer_dir(config: Config) -> Path:
    """Where ``bertpt train-tokenizer`` leaves the tokenizer of this configuration; it need not exist yet."""
    return corpus_dir(config) / f"tokenizer-{tokenizer_key(config)[0][:ID_DIGITS]}"


def store_key(config: Config) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Key, settings and inputs of the token store.

    Raises:
        RequestError: the documents or the tokenizer are missing.
    """
    corpus = config.corpus
    inputs = {
        "documents": finished(config, documents_dir(config), "download")["fingerprint"],
        "tokenizer": finished(config, tokenizer_dir(config), "train-tokenizer")["fingerprint"],
    }
    settings = {
        "format": STORE_FORMAT,
        "sentences": corpus.sentences,
        "language": language_code(corpus.language) if corpus.sentences == "split" else None,
        "min_sentences": corpus.min_sentences,
    }
    return stage_key("prepare", settings, inputs), settings, inputs


def store_dir(config: Config) -> Path:
    """Where ``bertpt prepare`` leaves the token store of this configuration; it need not exist yet."""
    return corpus_dir(config) / f"tokens-{store_key(config)[0][:ID_DIGITS]}"


def finished_store(config: Config) -> Path:
    """The token store of this configuration.

    Raises:
        RequestError: a stage before it, or the store itself, is missing; the line names the command.
    """
    directory = store_dir(config)
    finished(config, directory, "prepare")
    return directory


def trained_store(config: Config, fingerprint: str) -> Path:
    """The token store that a run was trained on; found by its fingerprint when what gave the tokenizer has gone.

    Raises:
        RequestError: as :func:`finished_store`.
    """
    try:
        return finished_store(config)
    except RequestError:
        for directory in sorted(corpus_dir(config).glob("tokens-*")):
            manifest = read_manifest(directory)
            if manifest is not None and manifest["fingerprint"] == fingerprint:
                return directory
        raise

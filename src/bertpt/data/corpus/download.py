"""The stage ``download``: from the sources that a configuration names to documents on disk.

Leaves ``data_dir/<corpus>/documents/``: ``train-*.parquet`` and ``heldout-*.parquet`` with the columns
``text``, ``source`` and ``name``, and the manifest. Memory does not grow with the text: a document costs
25 bytes while the stage runs.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol, cast

from bertpt.config import plain
from bertpt.config.schema import AnySource, Config, Corpus, FilesSource, HubSource
from bertpt.data.corpus.boilerplate import Removed, without_repeated_lines
from bertpt.data.corpus.cached import downloads_dir
from bertpt.data.corpus.documents import DocumentWriter
from bertpt.data.corpus.gather import Gathered, Keeps, gather
from bertpt.data.corpus.near_duplicates import DocumentIndex
from bertpt.data.corpus.report import announce, check_space, counts_of, ends_at_blank_lines, report, warnings
from bertpt.data.corpus.sources.base import RawDocument, Reading, SourceUnreachable, source_labels
from bertpt.data.corpus.split import choose_heldout, distinct, index_heldout, write_split
from bertpt.data.locate import documents_dir
from bertpt.data.stage import StageResult, differences, existing, stage_key
from bertpt.errors import RequestError
from bertpt.files import staged_directory, write_manifest
from bertpt.progress import Progress
from bertpt.progress import say as say_on_stderr

STAGE = "download"
_MODULES = {"files": "local"}  # the others are called like their kind
# Places, and what only people read: the content counts by its fingerprint, wherever it lies.
# So do the weights, by which rows are chosen later.
_NOT_IN_KEY = {"name", "path", "url", "validation", "size", "pip_args", "weight", "max_repeats"}
_LOCAL_ROUTE = "to read local text instead: --set 'corpus.sources=[{kind: files, path: FOLDER}]'"

Say = Callable[[str], None]


class _SourceModule(Protocol):
    def read(self, source: Any, reading: Reading) -> Iterator[RawDocument]: ...
    def fingerprint_inputs(self, source: Any, reading: Reading) -> str: ...


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sources by label, with all that shapes the result."""

    sources: dict[str, AnySource]
    settings: dict[str, Any]
    inputs: dict[str, str]
    is_fallback: bool

    @property
    def key(self) -> str:
        return stage_key(STAGE, self.settings, self.inputs)


def download(
    config: Config, *, overwrite: bool = False, say: Say = say_on_stderr, progress: bool = True
) -> StageResult:
    """Read, clean, split and write the corpus, unless that is already done.

    Args:
        config: ``data_dir`` and ``corpus`` are used.
        overwrite: replace finished documents made with other settings.
        say: gets the lines for people.
        progress: show progress on stderr.

    Raises:
        RequestError: faulty data, too few documents, or finished documents of other settings.
        SourceUnreachable: an index or hub cannot be reached, and there is no fallback.
        BertptError: a download or the writing failed.
    """
    directory = documents_dir(config)
    reading = Reading(downloads_dir(config.data_dir), config.corpus.encoding_errors, say=say)
    previous = existing(directory, overwrite)
    plan, unreachable = _plan_or_why_not(config.corpus, reading)
    if previous is not None:
        return _finished(directory, previous, config.corpus, plan, reading)
    with _no_empty_folders(directory.parent, Path(config.data_dir)):
        try:
            if plan is None:
                raise unreachable or SourceUnreachable("the sources cannot be reached")
            return _make(directory, plan, config, say, progress)
        except SourceUnreachable as error:
            if not config.corpus.fallback:
                raise SourceUnreachable(f"{error}; {_LOCAL_ROUTE}") from error
            say(f"{error}; corpus.fallback is used instead")
        try:
            return _make(directory, _plan(config.corpus, reading, is_fallback=True), config, say, progress)
        except SourceUnreachable as error:
            raise SourceUnreachable(f"{error} (corpus.fallback); {_LOCAL_ROUTE}") from error


# --- plan and key ---------------------------------------------------------------------------------------------


def _module(source: AnySource) -> _SourceModule:
    # Imported when used: datasets and mwparserfromhell take seconds.
    name = _MODULES.get(source.kind, source.kind)
    return cast(_SourceModule, importlib.import_module(f"bertpt.data.corpus.sources.{name}"))


def _keeps(corpus: Corpus) -> Keeps:
    min_lines = corpus.min_sentences if corpus.sentences == "lines" else 1
    return Keeps(min_lines, corpus.min_letters, corpus.max_letters)


def _plan(corpus: Corpus, reading: Reading, *, is_fallback: bool = False) -> _Plan:
    chosen = corpus.fallback if is_fallback else corpus.sources
    sources = dict(zip(source_labels(chosen), chosen, strict=True))
    inputs = {label: _module(source).fingerprint_inputs(source, reading) for label, source in sources.items()}
    return _Plan(sources, _settings(corpus, sources), inputs, is_fallback)


def _settings(corpus: Corpus, sources: Mapping[str, AnySource]) -> dict[str, Any]:
    return {
        "sources": {label: _content_settings(source) for label, source in sources.items()},
        "encoding_errors": corpus.encoding_errors,
        "limit": plain(corpus.limit),
        "heldout": plain(corpus.heldout) | {"near_duplicates": corpus.heldout.near_duplicates or None},
        "deduplicate": corpus.deduplicate,
        "min_lines": _keeps(corpus).min_lines,
    } | _options(corpus)


def _options(corpus: Corpus) -> dict[str, Any]:
    """Settings that count only where they are used."""
    used = {"min_letters": corpus.min_letters, "max_letters": corpus.max_letters}
    used["max_line_documents"] = corpus.max_line_documents
    options: dict[str, Any] = {key: value for key, value in used.items() if value}
    if corpus.deduplicate == "near-duplicates":
        options["similarity"] = corpus.similarity
    return options


def _content_settings(source: AnySource) -> dict[str, Any]:
    settings = {key: value for key, value in plain(source).items() if key not in _NOT_IN_KEY}
    if PurePath(settings.get("dataset", "")).is_absolute():  # a folder in place of a name on the hub
        settings["dataset"] = PurePath(settings["dataset"]).name
    return settings


def _plan_or_why_not(corpus: Corpus, reading: Reading) -> tuple[_Plan | None, SourceUnreachable | None]:
    try:
        return _plan(corpus, reading), None
    except SourceUnreachable as error:
        return None, error


def _finished(
    directory: Path, previous: dict[str, Any], corpus: Corpus, plan: _Plan | None, reading: Reading
) -> StageResult:
    """The documents that are there, when they are of the same sources and settings."""
    done = StageResult(directory, previous, skipped=True)
    if plan is not None and plan.key == previous["key"]:
        reading.say(f"{directory}: up to date")
        return done
    if previous["counts"]["is_fallback"]:
        with contextlib.suppress(SourceUnreachable):
            if _plan(corpus, reading, is_fallback=True).key == previous["key"]:
                reading.say(
                    f"{directory}: up to date, made from corpus.fallback; --overwrite tries corpus.sources again"
                )
                return done
    if plan is None:  # unreachable: the content cannot be compared, but the settings can
        sources = dict(zip(source_labels(corpus.sources), corpus.sources, strict=True))
        settings, inputs = _settings(corpus, sources), previous["inputs"]
    else:
        settings, inputs = plan.settings, plan.inputs
    changes = differences(previous, settings, inputs, "corpus")
    if not changes:
        reading.say(f"{directory}: used as it is; its sources cannot be reached to compare")
        return done
    raise RequestError(
        f"{directory}: made with other settings ({'; '.join(changes)}); keep both with --set corpus.name=NAME,"
        " or replace them with --overwrite"
    )


@contextlib.contextmanager
def _no_empty_folders(*folders: Path) -> Iterator[None]:
    """On failure remove the folders that did not exist before, unless something lies there."""
    missing = [folder for folder in folders if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


# --- making ---------------------------------------------------------------------------------------------------


def _make(directory: Path, plan: _Plan, config: Config, say: Say, progress: bool) -> StageResult:
    corpus = config.corpus
    downloads = downloads_dir(config.data_dir)
    for line in announce(plan.sources, downloads):
        say(line)
    check_space(directory, plan.sources, downloads, corpus.limit.bytes)
    with staged_directory(directory) as aside:
        work = aside / "unsplit"
        work.mkdir()
        gathered = []
        with DocumentWriter(work, "all") as writer:
            for label, source in plan.sources.items():
                gathered.append(_gather(label, source, writer, config, say, progress))
        shards, removed = writer.shards, None
        if corpus.max_line_documents is not None:
            shards, gathered, removed = _without_repeated_lines(writer.shards, gathered, work, corpus, say, progress)
        unique = {found.label: len(distinct(found)) for found in gathered}
        for found in gathered:
            by_blank_line = ends_at_blank_lines(plan.sources[found.label])
            for line in warnings(found, unique[found.label], by_blank_line, corpus.sentences == "lines"):
                say(line)
        can_give = {label: isinstance(source, FilesSource | HubSource) for label, source in plan.sources.items()}
        _split(shards, gathered, choose_heldout(gathered, corpus.heldout, can_give), aside, corpus, progress)
        shutil.rmtree(work)
        for found in gathered:
            say(report(found))
        counts = {
            "is_fallback": plan.is_fallback,
            "sources": {found.label: counts_of(found, unique[found.label]) for found in gathered},
        }
        if removed is not None:
            counts["repeated_lines"] = {"different": removed.different, "examples": removed.examples(20)}
        manifest = write_manifest(
            aside, stage=STAGE, key=plan.key, inputs=plan.inputs, settings=plan.settings, counts=counts
        )
    return StageResult(directory, manifest, skipped=False)


def _without_repeated_lines(
    shards: list[Path], gathered: list[Gathered], work: Path, corpus: Corpus, say: Say, shown: bool
) -> tuple[list[Path], list[Gathered], Removed]:
    most = corpus.max_line_documents or 0
    renewed = work / "without-repeated-lines"
    renewed.mkdir()
    with Progress("download: repeated lines", unit="documents", total=sum(map(len, gathered)), shown=shown) as progress:
        shards, gathered, removed = without_repeated_lines(
            shards, gathered, most, _keeps(corpus), renewed, progress.add
        )
    examples = ", ".join(f"{line[:60]!r} ({count:,})" for line, count in removed.examples().items())
    say(
        f"{removed.different:,} different lines stand in more than {most} documents and were removed"
        + (f", most often {examples}" if examples else "")
    )
    return shards, gathered, removed


def _split(
    shards: list[Path],
    gathered: list[Gathered],
    chosen: dict[str, set[bytes]],
    aside: Path,
    corpus: Corpus,
    shown: bool,
) -> None:
    """Write both sides, less what ``corpus.heldout.near_duplicates`` and ``corpus.deduplicate`` take out."""
    near = None
    if corpus.heldout.near_duplicates:
        near = DocumentIndex(corpus.heldout.near_duplicates, shards[0].with_name("heldout-hashes.bin"))
        index_heldout(shards, gathered, chosen, near)
    with Progress("download: split", unit="documents", total=sum(map(len, gathered)), shown=shown) as progress:
        within = None
        if corpus.deduplicate == "near-duplicates":
            within = DocumentIndex(corpus.similarity, shards[0].with_name("train-hashes.bin"))
        write_split(
            shards,
            gathered,
            chosen,
            aside,
            near=near,
            deduplicate=corpus.deduplicate != "none",
            within=within,
            tick=progress.add,
        )
    if not any(found.counts["documents"] for found in gathered):
        resembling = sum(found.counts["near_duplicates"] for found in gathered)
        raise RequestError(
            "no document is left to train on: all of them are held out too"
            + (f", or nearly so ({resembling:,}; corpus.heldout.near_duplicates)" if resembling else "")
        )


def _gather(label: str, source: AnySource, writer: DocumentWriter, config: Config, say: Say, shown: bool) -> Gathered:
    corpus = config.corpus
    with Progress(f"download {label}", unit="documents", shown=shown) as progress:
        reading = Reading(
            downloads_dir(config.data_dir),
            corpus.encoding_errors,
            say=lambda message: progress.note(message, say),
            max_documents=corpus.limit.documents,
        )
        own = getattr(source, "validation", None) or getattr(source, "validation_split", None)
        return gather(
            label,
            _module(source).read(source, reading),
            reading,
            writer,
            limit=corpus.limit,
            keeps=_keeps(corpus),
            own_heldout=own is not None,
            tick=progress.add,
        )

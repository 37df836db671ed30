"""Data sets of the Hugging Face hub, or a local folder in its layout, read through ``datasets``.

Code that a data set ships is never run (``datasets`` has no way to, since version 4).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain as joined
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils.tqdm import disable_progress_bars

from bertpt.config.schema import HubSource
from bertpt.data.corpus.cached import to_download
from bertpt.data.corpus.documents import (
    compile_heading,
    documents_by_blank_line,
    documents_by_group,
    documents_by_heading,
)
from bertpt.data.corpus.lines import split_lines
from bertpt.data.corpus.sources.base import RawDocument, Reading, SourceUnreachable
from bertpt.data.corpus.sources.detokenize import detokenize_wikitext
from bertpt.errors import BertptError, RequestError
from bertpt.files import fingerprint, sha256_file

Row = Mapping[str, Any]

_PROBE_SECONDS = 10.0
_NAME_COLUMNS = ("title", "name", "id")
_COMMIT = re.compile("[0-9a-f]{40}")
_LONGEST_REASON = 300  # characters
_UNREACHABLE = (ConnectionError, TimeoutError, OfflineModeIsEnabled)
_DETOKENIZERS: dict[str, Callable[[str], str]] = {"wikitext": detokenize_wikitext}


# --- reaching the hub -----------------------------------------------------------------------------------------


def _local_folder(source: HubSource) -> Path | None:
    """The folder that ``dataset`` names; ``None`` for a data set of the hub."""
    path = Path(source.dataset).expanduser()
    if path.is_dir():
        return path
    if source.dataset.startswith(("/", ".", "~")) or source.dataset.count("/") > 1:
        raise RequestError(f"{path}: no such folder (hub.dataset)")
    return None


def _is_reachable() -> bool:
    """One short request; the hub client itself would try for half a minute before it gives up."""
    if constants.is_offline_mode():
        return False
    try:
        huggingface_hub.get_session().head(constants.ENDPOINT, timeout=_PROBE_SECONDS)
    except Exception:  # of whichever HTTP library this version of the hub client has
        return False
    return True


@contextlib.contextmanager
def _hub(cache: Path, *, offline: bool) -> Iterator[None]:
    """Keep fetched files under ``cache``, unless the environment names a place, and fail at once when offline."""
    files = constants.HF_HUB_CACHE
    flags = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not ({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} & os.environ.keys()):
        constants.HF_HUB_CACHE = str(cache / "files")
    if offline:
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        disable_progress_bars()
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = files
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = flags


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_connectivity(error: BaseException) -> bool:
    """Whether an error says that there is no connection; the HTTP library behind it depends on the version."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500
    return isinstance(error, _UNREACHABLE) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _named_fault(source: HubSource, error: Exception, cache: Path) -> BertptError:
    """One line for whatever ``datasets`` raises."""
    chain = list(_chain(error))
    said = " ".join(str(error).split()).partition(" For more information check:")[0]
    reason = (said or type(error).__name__)[:_LONGEST_REASON]
    if any(isinstance(part, pa.ArrowInvalid) for part in chain):
        again = "" if Path(source.dataset).is_dir() else f"; remove {cache} to fetch all of it again"
        return BertptError(f"{source.dataset}: a file of the data set is damaged: {reason}{again}")
    if not isinstance(error, DatasetNotFoundError) and any(map(_is_connectivity, chain)):
        return SourceUnreachable(f"{source.dataset}: {constants.ENDPOINT} cannot be reached: {reason}")
    if isinstance(error, (ValueError, KeyError, FileNotFoundError, NotImplementedError, HfHubHTTPError)):
        return RequestError(f"{source.dataset}: {reason}")
    root = " ".join(str(chain[-1]).split())[:_LONGEST_REASON]
    return BertptError(f"{source.dataset}: {reason}" + ("" if root in reason else f" ({root})"))


# --- rows -----------------------------------------------------------------------------------------------------


def load(source: HubSource, split: str, reading: Reading) -> Any:
    """The rows of a split, as ``datasets`` gives them; ``reading.downloads`` keeps what is fetched.

    Raises:
        SourceUnreachable: the hub does not answer and its files are not in the cache.
        RequestError: no such data set, config, split or revision.
        BertptError: the files are damaged.
    """
    folder = _local_folder(source)
    cache = reading.downloads / "hub"
    offline = folder is None and not _is_reachable()
    if folder is None and not offline and to_download(source, reading.downloads):
        reading.say(f"downloading {source.dataset} ({source.size})")
    try:
        with _hub(cache, offline=offline):
            return datasets.load_dataset(
                source.dataset if folder is None else str(folder),
                source.config,
                split=split,
                revision=source.revision if folder is None else None,
                streaming=source.streaming,
                cache_dir=str(cache),
            )
    except Exception as error:  # the library raises errors of every kind
        raise _named_fault(source, error, cache) from error


def say_commit(source: HubSource, dataset: Any, reading: Reading) -> None:
    """Name the commit that was read, where no revision pins it: the tables lie in a folder of its name."""
    if source.revision is not None:
        return
    folders = (Path(file["filename"]).parent.name for file in dataset.cache_files)
    if commit := next((name for name in folders if _COMMIT.fullmatch(name)), None):
        reading.say(f"{source.dataset}: read at revision {commit}; set revision to pin it")


def _rows(source: HubSource, dataset: Any, reading: Reading) -> Iterator[Row]:
    rows = iter(dataset)
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # likewise
            raise _named_fault(source, error, reading.downloads / "hub") from error
        if row is None:
            return
        reading.counts["rows"] += 1
        yield row


def _check_columns(source: HubSource, columns: Iterable[str]) -> None:
    columns = list(columns)
    needed = {"text_column": source.text_column}
    if source.documents == "group" and source.group_column:
        needed["group_column"] = source.group_column
    faults = [
        f"{source.dataset}: no column {column!r} ({key}); columns: {', '.join(columns)}"
        for key, column in needed.items()
        if column not in columns
    ]
    if faults:
        raise RequestError(faults)


def _text(source: HubSource, row: Row, number: int) -> str:
    text = row[source.text_column]
    if text is None:
        return ""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise RequestError(f"{source.dataset}, row {number}: column {source.text_column!r} holds {kind}, not text")
    return text


def _row_name(row: Row, label: str, number: int) -> str:
    name = next((row[column] for column in _NAME_COLUMNS if row.get(column)), None)
    return str(name) if name is not None else f"{label}#{number}"


# --- documents ------------------------------------------------------------------------------------------------


def _check_rule(source: HubSource) -> None:
    if source.documents == "heading":
        if source.heading is None:
            raise RequestError("corpus.sources: hub: documents: heading needs heading: a regular expression")
        compile_heading(source.heading)
    if source.documents == "group" and source.group_column is None:
        raise RequestError("corpus.sources: hub: documents: group needs group_column")


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines of rows; an empty row is an empty line."""
    for text in texts:
        yield from split_lines(text) or [""]


def _documents(source: HubSource, rows: Iterable[Row], label: str) -> Iterator[RawDocument]:
    numbered = ((number, row, _text(source, row, number)) for number, row in enumerate(rows, 1))
    if source.documents == "blank-line":
        yield from documents_by_blank_line(_lines(text for _, _, text in numbered), label)
    elif source.documents == "heading":
        yield from documents_by_heading(_lines(text for _, _, text in numbered), source.heading or "", label)
    elif source.documents == "group":
        column = source.group_column or ""
        yield from documents_by_group(
            ((str(row[column]), "\n".join(split_lines(text))) for _, row, text in numbered), label
        )
    else:
        for number, row, text in numbered:
            yield RawDocument("\n".join(split_lines(text)), _row_name(row, label, number))


def _read_split(source: HubSource, split: str, reading: Reading) -> Iterator[RawDocument]:
    dataset = load(source, split, reading)
    if not source.streaming:
        say_commit(source, dataset, reading)
    rows = _rows(source, dataset, reading)
    first = next(rows, None)
    if first is None:
        raise RequestError(f"{source.dataset}: split {split!r} has no rows")
    _check_columns(source, dataset.column_names or first)
    label = f"{source.name or source.dataset.rstrip('/').rpartition('/')[2]}/{split}"
    undo = _DETOKENIZERS.get(source.detokenize)
    for document in _documents(source, joined([first], rows), label):
        if undo:
            lines = filter(None, map(undo, document.text.split("\n")))
            document = RawDocument("\n".join(lines), undo(document.name.strip("= ")))
        yield document


def fingerprint_inputs(source: HubSource, reading: Reading) -> str:
    """Changes with what is asked for; for a local folder, with its files. Nothing is fetched.

    Without ``revision`` a data set may change on the hub unseen: its author may push to the branch.
    """
    folder = _local_folder(source)
    files = {}
    if folder is not None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): sha256_file(path) for path in paths}
    asked = source.model_dump(include={"config", "split", "validation_split", "revision"})
    return fingerprint({"kind": "hub", "dataset": files or source.dataset, **asked})


def read(source: HubSource, reading: Reading) -> Iterator[RawDocument]:
    """Yield the documents of ``validation_split``, held out, then those of ``split``.

    ``reading.max_documents`` ends the held-out part early; whoever reads stops within the other.

    Raises:
        SourceUnreachable: the hub does not answer and its files are not in the cache.
        RequestError: no such data set, config, split, revision or column.
        BertptError: the files are damaged.
    """
    _check_rule(source)
    heldout: bool | None = None
    if source.validation_split is not None:
        heldout = False
        for document in islice(_read_split(source, source.validation_split, reading), reading.max_documents):
            yield replace(document, heldout=True)
    for document in _read_split(source, source.split, reading):
        yield replace(document, heldout=heldout)

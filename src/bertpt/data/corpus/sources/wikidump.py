"""MediaWiki XML dumps, streamed: articles only, without redirects, as plain paragraphs.

Format: https://www.mediawiki.org/wiki/Help:Export#Export_format (schemas 0.3 to 0.11).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast
from xml.parsers import expat

from bertpt.config.schema import WikidumpSource
from bertpt.data.corpus.cached import dump_place
from bertpt.data.corpus.fetch import fetch
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.data.corpus.sources.wikitext import FILE_NAMESPACES, plain_text
from bertpt.data.corpus.streams import decompressed
from bertpt.errors import RequestError
from bertpt.files import fingerprint, sha256_file

MAX_PAGE_LETTERS = 2**26
_KEPT = frozenset({"title", "ns", "model", "text", "namespace"})
_DROPPED_KEYS = frozenset({"-2", "6", "14"})  # media, files, categories: their links show no text


class _NotADumpError(Exception):
    """What could fill memory or read other files: entities, and a page without end."""


@dataclass(slots=True)
class _Page:
    title: str = ""
    ns: str | None = None
    model: str = "wikitext"
    redirect: bool = False
    text: str = ""


@dataclass(slots=True)
class _Pages:
    """Collects pages from parser events; of several revisions the last one counts."""

    done: deque[_Page] = field(default_factory=deque)
    namespaces: dict[str, str] = field(default_factory=dict)
    page: _Page | None = None
    pieces: list[str] | None = None
    key: str = "0"
    root: str | None = None
    letters: int = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.root = self.root or name
        if name == "page":
            self.page = _Page()
        elif name == "redirect" and self.page:
            self.page.redirect = True
        elif name in _KEPT:
            self.pieces, self.letters = [], 0
            self.key = attributes.get("key", "0")

    def end(self, name: str) -> None:
        if name == "page" and self.page:
            self.done.append(self.page)
            self.page = None
        elif self.pieces is not None and name in _KEPT:
            content = "".join(self.pieces)
            self.pieces = None
            if name == "namespace":
                self.namespaces[content.strip().lower()] = self.key
            elif self.page:
                setattr(self.page, name, content)

    def characters(self, content: str) -> None:
        if self.pieces is not None:
            self.pieces.append(content)
            self.letters += len(content)
            if self.letters > MAX_PAGE_LETTERS:
                raise _NotADumpError(f"has a page of more than {MAX_PAGE_LETTERS:,} letters; MediaWiki allows 2 MiB")

    def doctype(self, *_: object) -> None:
        raise _NotADumpError("declares a document type; MediaWiki dumps have none, and entities are not expanded")


def _parse(chunks: Iterator[bytes], pages: _Pages) -> Iterator[_Page]:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = pages.start
    parser.EndElementHandler = pages.end
    parser.CharacterDataHandler = pages.characters
    parser.StartDoctypeDeclHandler = pages.doctype
    for chunk in chunks:
        parser.Parse(chunk, False)
        while pages.done:
            yield pages.done.popleft()
    parser.Parse(b"", True)


def _is_article(page: _Page, pages: _Pages) -> bool:
    if page.ns is not None:
        return page.ns.strip() == "0"
    prefix, colon, _ = page.title.partition(":")
    return not (colon and pages.namespaces.get(prefix.strip().lower(), "0") != "0")


def read_dump(dump: Path | BinaryIO, name: str, reading: Reading) -> Iterator[RawDocument]:
    """Yield the articles of a dump; memory holds one article and one block of the file.

    Counts ``pages``, ``redirects`` and ``other pages`` (other namespaces, other content than wikitext).

    Args:
        dump: a path or an open binary stream; plain or compressed (bzip2, gzip, xz, zstd).
        name: what errors call the dump.
        reading: takes the counts.

    Raises:
        RequestError: damaged, cut short, not a MediaWiki dump, or with a document type.
    """
    pages = _Pages()
    try:
        for page in _parse(decompressed(dump, name), pages):
            reading.counts["pages"] += 1
            if not _is_article(page, pages) or page.model.strip() != "wikitext":
                reading.counts["other pages"] += 1
            elif page.redirect or page.text[:10].lstrip().upper().startswith("#REDIRECT"):
                reading.counts["redirects"] += 1
            else:
                dropped = FILE_NAMESPACES | {n for n, key in pages.namespaces.items() if key in _DROPPED_KEYS}
                yield RawDocument(text=plain_text(page.text, dropped), name=page.title.strip())
    except expat.ExpatError as error:
        raise RequestError(f"{name}, line {error.lineno}: not a whole MediaWiki dump: {error}") from error
    except _NotADumpError as error:
        raise RequestError(f"{name}: {error}") from error
    if pages.root != "mediawiki":
        raise RequestError(f"{name}: not a MediaWiki dump: the root element is <{pages.root}>, not <mediawiki>")


def _place(source: WikidumpSource, reading: Reading) -> Path:
    if (source.path is None) == (source.url is None):
        raise RequestError("corpus.sources: wikidump needs path or url (one of them)")
    if source.url is not None:
        target = dump_place(source.url, reading.downloads)
        return fetch(source.url, target, sha256=source.sha256, size=source.size, say=reading.say)
    path = Path(cast(str, source.path)).expanduser()
    if not path.is_file():
        raise RequestError(f"{path}: no such file (corpus.sources: wikidump.path)")
    return path


def fingerprint_inputs(source: WikidumpSource, reading: Reading) -> str:
    """Changes when the dump's content does: the stated hash of a download, else the hash of the file."""
    if source.url is not None and source.sha256:
        return fingerprint({"kind": "wikidump", "sha256": source.sha256})
    return fingerprint({"kind": "wikidump", "sha256": sha256_file(_place(source, reading))})


def read(source: WikidumpSource, reading: Reading) -> Iterator[RawDocument]:
    """Yield the articles of a local or downloaded dump.

    Raises:
        RequestError: no such file, or not a whole dump.
        BertptError: the server refused, or the hash differs.
        SourceUnreachable: no connection.
    """
    path = _place(source, reading)
    yield from read_dump(path, path.name, reading)

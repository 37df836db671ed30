"""Dumps: articles stream out of a compressed file; redirects and other namespaces are counted, not read."""

from __future__ import annotations

import bz2
import gzip
import io
import tracemalloc
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from bertpt.config.schema import WikidumpSource
from bertpt.data.corpus.sources import wikidump
from bertpt.data.corpus.sources.base import Reading
from bertpt.errors import RequestError

TEXT = "'''Anarchism''' is a [[political philosophy]].<ref>A note & more.</ref>\n\nIt is old."


def page(title: str, text: str, ns: str | None = "0", extra: str = "") -> str:
    space = "" if ns is None else f"<ns>{ns}</ns>"
    return (
        f"<page><title>{escape(title)}</title>{space}<id>1</id>{extra}<revision><contributor><username>x</username>"
        f"</contributor><text xml:space='preserve'>{escape(text)}</text></revision></page>"
    )


def dump(*pages: str) -> bytes:
    names = "<namespace key='0' /><namespace key='6'>Datei</namespace><namespace key='4'>Wikipedia</namespace>"
    head = f"<mediawiki xmlns='http://www.mediawiki.org/xml/export-0.10/'><siteinfo><namespaces>{names}"
    return f"{head}</namespaces></siteinfo>{''.join(pages)}</mediawiki>".encode()


def read(content: bytes, tmp_path: Path, name: str = "dump.xml") -> tuple[list[tuple[str, str]], Reading]:
    path = tmp_path / name
    path.write_bytes(content)
    reading = Reading(tmp_path / "downloads")
    found = wikidump.read(WikidumpSource(kind="wikidump", path=str(path)), reading)
    return [(document.name, document.text) for document in found], reading


@pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress])
def test_articles_are_read_whatever_the_compression(pack: object, tmp_path: Path) -> None:
    assert callable(pack)
    found, _ = read(pack(dump(page("Anarchism & more", TEXT))), tmp_path, "dump.anything")
    assert found == [("Anarchism & more", "Anarchism is a political philosophy.\nIt is old.")]


def test_several_bzip2_streams_in_a_row_are_one_dump(tmp_path: Path) -> None:
    whole = dump(page("A", TEXT), page("B", TEXT))
    found, _ = read(bz2.compress(whole[:300]) + bz2.compress(whole[300:]), tmp_path)
    assert [name for name, _ in found] == ["A", "B"]


def test_redirects_and_other_namespaces_are_counted_and_left_out(tmp_path: Path) -> None:
    found, reading = read(
        dump(
            page("A", TEXT),
            page("Old", "#REDIRECT [[A]]"),
            page("Alt", "#WEITERLEITUNG [[A]]", extra="<redirect title='A' />"),
            page("Talk:A", TEXT, ns="1"),
            page("Wikipedia:About", TEXT, ns=None),
            page("2001: A Space Odyssey", TEXT, ns=None),
        ),
        tmp_path,
    )
    assert [name for name, _ in found] == ["A", "2001: A Space Odyssey"]
    assert reading.counts == {"pages": 6, "redirects": 2, "other pages": 2}


def test_file_links_are_known_by_the_names_of_the_dump(tmp_path: Path) -> None:
    found, _ = read(dump(page("A", f"[[Datei:a.jpg|mini|Ein Bild]]{TEXT}")), tmp_path)
    assert "Bild" not in found[0][1]


def test_the_last_revision_counts(tmp_path: Path) -> None:
    history = page("A", TEXT).replace("</page>", "<revision><text>It is new.</text></revision></page>")
    assert read(dump(history), tmp_path)[0] == [("A", "It is new.")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (dump(page("A", TEXT))[:-30], "dump.xml, line 3: not a whole MediaWiki dump"),
        (bz2.compress(dump(page("A", TEXT)))[:-10], "dump.xml: the bzip2 file is cut short"),
        (b"<rss></rss>", "the root element is <rss>, not <mediawiki>"),
        (b"plain text", "not a whole MediaWiki dump"),
        (b"", "not a whole MediaWiki dump"),
        (
            b"<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><mediawiki>&b;</mediawiki>",
            "declares a document type",
        ),
    ],
)
def test_a_faulty_dump_is_named_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        read(content, tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_does_not_grow_with_the_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikidump, "plain_text", lambda text, dropped: text)

    def peak(pages: int) -> int:
        content = io.BytesIO(dump(*[page(f"A{n}", TEXT * 20) for n in range(pages)]))
        tracemalloc.start()
        count = sum(1 for _ in wikidump.read_dump(content, "dump", Reading(Path())))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == pages
        return most

    assert peak(9000) < 1.3 * peak(1500)  # 18 MB and 3 MB


def test_the_place_must_be_there_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        list(wikidump.read(WikidumpSource(kind="wikidump", path=str(tmp_path / "none")), Reading(tmp_path)))
    with pytest.raises(RequestError, match="path or url"):
        list(wikidump.read(WikidumpSource(kind="wikidump"), Reading(tmp_path)))


def test_the_fingerprint_follows_the_content_not_the_place(tmp_path: Path) -> None:
    def of(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return wikidump.fingerprint_inputs(WikidumpSource(kind="wikidump", path=str(path)), Reading(tmp_path))

    assert of("a", b"one") == of("b", b"one") != of("a", b"two")


def test_a_page_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikidump, "MAX_PAGE_LETTERS", 1000)
    assert read(dump(page("a", "word " * 150), page("b", "word " * 150)), tmp_path)
    with pytest.raises(RequestError, match=r"has a page of more than 1,000 letters"):
        read(dump(page("a", "word " * 300)), tmp_path)

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bertpt.config import plain
from bertpt.config.schema import Config
from bertpt.data.corpus.documents import Document, iter_documents
from bertpt.data.corpus.download import download
from bertpt.data.corpus.gather import RepeatedLines
from bertpt.data.corpus.sources.base import RawDocument, Reading, SourceUnreachable, source_labels
from bertpt.data.stage import StageResult
from bertpt.errors import RequestError

SOTU = Path(__file__).parents[2] / "shared" / "data" / "lm_sotu"


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def config(tmp_path: Path, *sources: dict[str, Any] | str | Path, **corpus: Any) -> Config:
    full = [s if isinstance(s, dict) else {"kind": "files", "path": str(s)} for s in sources]
    return Config.model_validate(
        {
            "name": "x",
            "data_dir": str(tmp_path / "data"),
            "corpus": {"name": "c", "sources": full, **corpus},
            "train": {"phases": [{"steps": 1}]},
        }
    )


def make(settings: Config, said: list[str] | None = None, **options: Any) -> StageResult:
    return download(settings, say=(said if said is not None else []).append, progress=False, **options)


def corpus_text(count: int = 40, lines: int = 3) -> str:
    return (
        "\n\n".join("\n".join(f"Line {n} of text {d}. It goes on." for n in range(lines)) for d in range(count)) + "\n"
    )


def both(result: StageResult) -> tuple[list[Document], list[Document]]:
    return list(iter_documents(result.directory, "train")), list(iter_documents(result.directory, "heldout"))


def counts(result: StageResult, label: str) -> dict[str, Any]:
    return dict(result.manifest["counts"]["sources"][label])


# --- what comes out -------------------------------------------------------------------------------------------


def test_documents_in_source_order_split_by_the_hash_of_their_text(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", corpus_text(400))
    said: list[str] = []
    result = make(config(tmp_path, path), said)
    train, heldout = both(result)
    numbers = [int(document.name.partition("#")[2]) for document in train]
    assert numbers == sorted(numbers)
    assert len(train) + len(heldout) == 400
    for document, side in [(d, False) for d in train] + [(d, True) for d in heldout]:
        share = int(hashlib.sha256(document.text.encode()).hexdigest(), 16) / 2**256
        assert (share < 0.05) == side
    assert counts(result, "t") | {
        "documents": len(train),
        "heldout": len(heldout),
        "lines": 1200,
        "files": 1,
    } == counts(result, "t")
    assert result.manifest["stage"] == "download"
    assert any("1 file" in line and "t.txt" in line for line in said)
    assert any("400 documents" in line and "1,200 lines" in line and "median 3" in line for line in said)


def test_the_split_is_stable_when_documents_are_added(tmp_path: Path) -> None:
    heldout = []
    for count in (400, 800):
        path = put(tmp_path / f"{count}" / "t.txt", corpus_text(count))
        heldout.append({d.text for d in both(make(config(tmp_path, path, name=f"c{count}")))[1]})
    assert heldout[0] < heldout[1]


def test_lf_crlf_and_cr_copies_give_identical_files(tmp_path: Path) -> None:
    prints = set()
    for name, end in (("lf", "\n"), ("crlf", "\r\n"), ("cr", "\r")):
        path = put(tmp_path / name / "t.txt", corpus_text().replace("\n", end))
        result = make(config(tmp_path, path, name=name))
        prints.add((result.manifest["fingerprint"], (result.directory / "train-00000.parquet").read_bytes()))
    assert len(prints) == 1


def test_text_is_cleaned_and_what_was_changed_is_counted(tmp_path: Path) -> None:
    dirty = "hel\x00lo\x0bworld\u2028again\x85 you\tnice \n\u3000\n  \ufeffsecond line\n"
    path = put(tmp_path / "t.txt", "\ufeff" + corpus_text() + "\n" + dirty)
    said: list[str] = []
    result = make(config(tmp_path, path), said)
    found = [document.text for split in both(result) for document in split]
    assert {"hel lo world again  you\tnice", "second line"} < set(found)
    assert all(line and line == line.strip() for text in found for line in text.split("\n"))
    assert counts(result, "t")["controls"] == 5
    assert counts(result, "t")["byte_order_marks"] == 1
    assert any("5 control characters" in line for line in said)


def test_a_very_long_line_is_kept_whole(tmp_path: Path) -> None:
    long = "word " * 400_000 + "end"
    path = put(tmp_path / "t.txt", corpus_text() + "\n" + long)
    assert long in {document.text for split in both(make(config(tmp_path, path))) for document in split}


def test_empty_and_short_documents_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [{"text": t} for t in [*(f"one {n}\ntwo" for n in range(20)), "", " \u3000\n\x00", "title only"]]
    path = put(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    result = make(config(tmp_path, path))
    assert counts(result, "t")["dropped_empty"] == 2
    assert sum(map(len, both(result))) == 21
    result = make(config(tmp_path, path, sentences="lines", min_sentences=2, name="d"))
    assert counts(result, "t")["dropped_short"] == 1
    assert sum(map(len, both(result))) == 20


def test_encoding_errors_are_refused_or_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", corpus_text().encode() + b"\ncaf\xe9\n")
    with pytest.raises(RequestError, match=r"t.txt: line 161, byte \d+: 0xe9"):
        make(config(tmp_path, path))
    assert not (tmp_path / "data").exists()
    result = make(config(tmp_path, path, encoding_errors="replace"))
    assert counts(result, "t")["replaced"] == 1


def test_limits_hold_for_each_source(tmp_path: Path) -> None:
    one, two = put(tmp_path / "one.txt", corpus_text(100)), put(tmp_path / "two.txt", corpus_text(100, lines=2))
    result = make(config(tmp_path, one, two, limit={"documents": 30}))
    assert Counter(d.source for split in both(result) for d in split) == {"one": 30, "two": 30}
    result = make(config(tmp_path, one, two, limit={"bytes": 2000}, name="d"))
    for label in ("one", "two"):
        taken = [d for split in both(result) for d in split if d.source == label]
        assert 1900 < sum(len(d.text.encode()) for d in taken) == counts(result, label)["text_bytes"] <= 2000
    with pytest.raises(RequestError, match=r"corpus.limit.bytes=10 is less than its first document"):
        make(config(tmp_path, one, limit={"bytes": 10}, name="e"))


# --- held-out documents ---------------------------------------------------------------------------------------


def test_at_least_and_at_most_so_many_are_held_out(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", corpus_text(100))
    lowest = sorted(corpus_text(100).strip().split("\n\n"), key=lambda t: hashlib.sha256(t.encode()).digest())
    for name, heldout, count in (
        ("min", {"share": 0.0, "min_documents": 10}, 10),
        ("max", {"share": 0.5, "max_documents": 12}, 12),
    ):
        found = both(make(config(tmp_path, path, heldout=heldout, name=name)))[1]
        assert {d.text for d in found} == set(lowest[:count])


def test_too_few_documents_say_what_to_set_for_every_source_at_once(tmp_path: Path) -> None:
    few, one = put(tmp_path / "few.txt", corpus_text(15)), put(tmp_path / "one.txt", "a\nb\nc")
    said: list[str] = []
    with pytest.raises(RequestError) as caught:
        make(config(tmp_path, few, one), said)
    first, second = caught.value.faults
    assert first.startswith("few: 15 documents; holding out corpus.heldout.min_documents=8 needs 16")
    assert "set corpus.heldout.min_documents=7" in first
    assert "validation: FILE" in first
    assert second.startswith("one: 1 document;")
    assert any("were the blank lines between documents lost?" in line for line in said)
    assert sum(map(len, both(make(config(tmp_path, few, heldout={"min_documents": 7}))))) == 15


def test_no_text_stands_on_both_sides_even_with_copies_and_several_sources(tmp_path: Path) -> None:
    parts = corpus_text(60).strip().split("\n\n")
    one = put(tmp_path / "one.txt", "\n\n".join(parts + parts[:40] + parts[:20]))
    two = put(tmp_path / "two.txt", "\n\n".join(parts[::-1] + corpus_text(30, lines=5).strip().split("\n\n")))
    validation = put(tmp_path / "val.txt", "\n\n".join([*parts[:5], parts[0], "only here\nfor real"]))
    three = {"kind": "files", "path": str(put(tmp_path / "three.txt", "\n\n".join(parts)))}
    said: list[str] = []
    settings = config(tmp_path, one, two, {**three, "validation": str(validation)}, heldout={"share": 0.2})
    result = make(settings, said)
    train, heldout = both(result)
    assert not {d.text for d in train} & {d.text for d in heldout}
    assert len({d.text for d in heldout}) == len(heldout)
    assert {d.text for d in train} | {d.text for d in heldout} == set(parts) | {
        *corpus_text(30, lines=5).strip().split("\n\n"),
        "only here\nfor real",
    }
    assert "only here\nfor real" in {d.text for d in heldout if d.source == "three"}
    assert counts(result, "one")["duplicates"] == 60
    for label in ("one", "two", "three"):
        read = counts(result, label)
        kept = read["documents"] + read["heldout"] + read.get("overlap", 0) + read.get("heldout_copies", 0)
        assert kept == {"one": 120, "two": 90, "three": 67}[label]
    assert any("one: warning: 50% of the documents repeat another" in line for line in said)


def test_given_validation_is_kept_whole_and_may_not_be_empty(tmp_path: Path) -> None:
    path, validation = put(tmp_path / "t.txt", "a\nb\n\nc\nd"), put(tmp_path / "v.txt", "e\nf\n")
    source = {"kind": "files", "path": str(path), "validation": str(validation)}
    train, heldout = both(make(config(tmp_path, source, limit={"documents": 1})))
    assert ([d.text for d in train], [d.text for d in heldout]) == (["a\nb"], ["e\nf"])
    put(validation, "\n\n")
    with pytest.raises(RequestError, match="hold no documents"):
        make(config(tmp_path, source, name="d"))
    put(validation, "c\nd\n\na\nb\n")
    with pytest.raises(RequestError, match="no document is left to train on"):
        make(config(tmp_path, source, name="d"))


# --- warnings -------------------------------------------------------------------------------------------------


def test_a_blank_line_after_every_sentence_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    said: list[str] = []
    make(config(tmp_path, put(tmp_path / "t.txt", "".join(f"Sentence {n}.\n\n" for n in range(30)))), said)
    (warning,) = (line for line in said if "warning" in line)
    assert "100% of 30 documents are a single sentence" in warning
    assert "a blank line after every sentence" in warning


def test_paragraphs_of_several_sentences_get_a_milder_note_and_whole_documents_none(tmp_path: Path) -> None:
    said: list[str] = []
    text = "".join(f"Paragraph {n}. It has more.\n\n" for n in range(30))
    make(config(tmp_path, put(tmp_path / "t.txt", text)), said)
    (warning,) = (line for line in said if "warning" in line)
    assert "are a single line" in warning
    said.clear()
    make(config(tmp_path, put(tmp_path / "u.txt", corpus_text()), name="d"), said)
    assert not [line for line in said if "warning" in line]


def test_repeated_lines_are_warned_of(tmp_path: Path) -> None:
    said: list[str] = []
    text = "\n\n".join(f"Header\nText {n}. More of it.\nFooter\n" for n in range(30))
    result = make(config(tmp_path, put(tmp_path / "t.txt", text)), said)
    assert counts(result, "t")["repeated_lines_share"] == round(58 / 90, 4)
    assert any("64% of the lines repeat another line" in line for line in said)


def test_one_document_to_train_on_is_warned_of(tmp_path: Path) -> None:
    validation = put(tmp_path / "v.txt", corpus_text(3))
    path = put(tmp_path / "t.txt", "one line of text\n" * 1000)
    said: list[str] = []
    make(config(tmp_path, {"kind": "files", "path": str(path), "validation": str(validation)}), said)
    assert any("only one document to train on" in line and "pairs.rule=none" in line for line in said)
    assert any("of the lines repeat another line" in line for line in said)


@pytest.mark.parametrize("repeat", [1, 2, 5])
def test_the_share_of_repeated_lines_is_estimated_in_bounded_memory(repeat: int) -> None:
    sample = RepeatedLines(capacity=500)
    for _ in range(repeat):
        for number in range(20_000):
            sample.add(f"line {number}")
    assert sample.share == pytest.approx(1 - 1 / repeat, abs=0.02)
    assert len(sample._seen) <= 500


# --- running again --------------------------------------------------------------------------------------------


def test_finished_documents_are_used_again_and_other_settings_are_shown(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", corpus_text())
    first = make(config(tmp_path, path))
    said: list[str] = []
    again = make(config(tmp_path, path), said)
    assert (first.skipped, again.skipped) == (False, True)
    assert again.manifest == first.manifest
    assert said == [f"{first.directory}: up to date"]
    with pytest.raises(RequestError) as caught:
        make(config(tmp_path, path, heldout={"share": 0.1}, limit={"documents": 30}))
    message = str(caught.value)
    assert "corpus.heldout.share: 0.05 -> 0.1" in message
    assert "corpus.limit.documents: None -> 30" in message
    assert "--set corpus.name=NAME" in message
    assert "--overwrite" in message
    assert len(caught.value.faults) == 1
    put(path, corpus_text(41))
    with pytest.raises(RequestError, match=r"content of t: [0-9a-f]{8} -> [0-9a-f]{8}"):
        make(config(tmp_path, path))
    assert not make(config(tmp_path, path), overwrite=True).skipped


def test_moving_the_files_or_the_data_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a" / "t.txt", corpus_text())
    first = make(config(tmp_path, path))
    path.parent.rename(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b")
    assert make(config(tmp_path, "t.txt")).skipped
    assert str(tmp_path) not in json.dumps(dict(first.manifest))
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = Config.model_validate(plain(config(tmp_path, "t.txt")) | {"data_dir": str(tmp_path / "moved")})
    assert make(moved).skipped


def test_unfinished_or_damaged_documents_are_refused_unless_overwritten(tmp_path: Path) -> None:
    settings = config(tmp_path, put(tmp_path / "t.txt", corpus_text()))
    directory = make(settings).directory
    (directory / "train-00000.parquet").write_bytes(b"cut")
    with pytest.raises(RequestError, match=r"train-00000.parquet: 3 bytes, the manifest says"):
        make(settings)
    (directory / "manifest.json").unlink()
    with pytest.raises(RequestError, match="holds files but no manifest"):
        make(settings)
    assert not make(settings, overwrite=True).skipped


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_download_leaves_no_documents_and_keeps_finished_ones(tmp_path: Path, kill: signal.Signals) -> None:
    settings = config(tmp_path, put(tmp_path / "t.txt", corpus_text()))
    finished = make(settings)
    code = (
        "import sys, time; from bertpt.config.schema import Config; from bertpt.data.corpus import download as d\n"
        "import bertpt.data.corpus.gather as g\n"
        "original = g.note\n"
        "def slow(*a):\n"
        "    original(*a); print('reading', flush=True); time.sleep(0.05)\n"
        "g.note = slow\n"
        "d.download(Config.model_validate_json(sys.argv[1]), overwrite=True)\n"
    )
    command = [sys.executable, "-c", code, settings.model_dump_json(by_alias=True)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert list(finished.directory.parent.glob(".documents.*.tmp"))
        time.sleep(0.1)
        process.send_signal(kill)
        process.stdout.read()
        assert process.wait() != 0
    assert make(settings).skipped
    if kill == signal.SIGINT:
        assert [path.name for path in finished.directory.parent.iterdir()] == ["documents"]


# --- sources that cannot be reached ---------------------------------------------------------------------------


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for a hub that may be unreachable, and for the source that needs no network."""
    state: dict[str, Any] = {"reachable": False, "after": 0, "fingerprint_needs_network": False}

    def documents(name: str) -> Iterator[RawDocument]:
        for number in range(20):
            yield RawDocument(f"{name} {number}\nsecond line", f"{name} {number}")

    def read_hub(source: Any, reading: Reading) -> Iterator[RawDocument]:
        for number, document in enumerate(documents("hub")):
            if not state["reachable"] and number >= state["after"]:
                raise SourceUnreachable("hub: GET https://hub.example/x: 503")
            yield document

    def hub_print(source: Any, reading: Reading) -> str:
        if state["fingerprint_needs_network"] and not state["reachable"]:
            raise SourceUnreachable("hub: no connection")
        return "a" * 64

    for name, read, fingerprint in (
        ("hub", read_hub, hub_print),
        ("docstrings", lambda source, reading: documents("doc"), lambda source, reading: "b" * 64),
    ):
        module = ModuleType(f"bertpt.data.corpus.sources.{name}")
        module.__dict__.update(read=read, fingerprint_inputs=fingerprint)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return state


HUB = {"kind": "hub", "dataset": "org/set", "size": "2 GB"}
FALLBACK = [{"kind": "docstrings"}]


def test_an_unreachable_source_without_fallback_names_the_local_route(tmp_path: Path, sources: dict[str, Any]) -> None:
    said: list[str] = []
    with pytest.raises(SourceUnreachable, match=r"503.*kind: files, path: FOLDER") as caught:
        make(config(tmp_path, HUB), said)
    assert caught.value.exit_code == 1
    assert "org-set: hub org/set, 2 GB to download" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("after", [0, 7])
@pytest.mark.parametrize("early", [False, True])
def test_the_fallback_stands_in_says_so_and_is_found_again(
    tmp_path: Path, sources: dict[str, Any], after: int, early: bool
) -> None:
    sources |= {"after": after, "fingerprint_needs_network": early}
    settings, said = config(tmp_path, HUB, fallback=FALLBACK), list[str]()
    result = make(settings, said)
    assert {d.source for split in both(result) for d in split} == {"docstrings"}
    assert any("corpus.fallback is used instead" in line for line in said)
    assert result.manifest["counts"]["is_fallback"] is True
    assert list(result.manifest["settings"]["sources"]) == ["docstrings"]
    said.clear()
    assert make(settings, said).skipped
    assert "made from corpus.fallback" in said[0]
    sources["reachable"] = True
    real = make(settings, overwrite=True)
    assert {d.source for split in both(real) for d in split} == {"org-set"}
    assert real.manifest["counts"]["is_fallback"] is False


def test_finished_documents_serve_without_the_network(tmp_path: Path, sources: dict[str, Any]) -> None:
    sources |= {"reachable": True, "fingerprint_needs_network": True}
    make(config(tmp_path, HUB, fallback=FALLBACK))
    sources["reachable"] = False
    said: list[str] = []
    assert make(config(tmp_path, HUB, fallback=FALLBACK), said).skipped
    assert "cannot be reached to compare" in said[0]
    with pytest.raises(RequestError, match=r"corpus.limit.documents: None -> 3"):
        make(config(tmp_path, HUB, fallback=FALLBACK, limit={"documents": 3}))


def test_labels_come_from_names_and_places_and_differ(tmp_path: Path) -> None:
    wheel = {"kind": "wheel", "package": "some_pkg==1.0", "sha256": "0" * 64, "member": "m", "reader": "text"}
    files = {"kind": "files", "path": "/a/b/c.txt"}
    named = {**files, "name": "my texts"}
    settings = config(tmp_path, files, files, named, HUB, wheel, *FALLBACK, {"kind": "files", "path": "x/*"})
    assert source_labels(settings.corpus.sources) == [
        "c", "c-2", "my-texts", "org-set", "some_pkg", "docstrings", "files",
    ]  # fmt: skip


# --- places ---------------------------------------------------------------------------------------------------


def test_no_room_on_the_disk_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "t.txt", corpus_text(4000))
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 10_000})())
    with pytest.raises(Exception, match=r"about 1\d\d kB needed, 10.0 kB free") as caught:
        make(config(tmp_path, path))
    assert getattr(caught.value, "exit_code", None) == 1


def test_the_result_does_not_depend_on_the_locale(tmp_path: Path) -> None:
    put(tmp_path / "c" / "ümlaut.txt", corpus_text().replace("text", "Größe 😀"))
    for number in range(20):
        put(tmp_path / "c" / f"{number}é.txt", f"Text {number}\nzweite Zeile")
    code = (
        "import sys; from bertpt.config.schema import Config; from bertpt.data.corpus.download import download\n"
        "print(download(Config.model_validate_json(sys.argv[1])).manifest['key'])\n"
    )
    keys = set()
    for environment in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}):
        name = environment.get("LC_ALL", "utf8")
        settings = config(tmp_path, tmp_path / "c", name=name).model_dump_json(by_alias=True)
        command = [sys.executable, "-c", code, settings]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
        assert b"21 files" in done.stderr
        documents = tmp_path / "data" / name / "documents"
        names = sorted(d.name for split in ("train", "heldout") for d in iter_documents(documents, split))
        keys.add((done.stdout, tuple(names), (documents / "train-00000.parquet").read_bytes()))
    ((_, names, _),) = keys
    assert "ümlaut.txt" in names


@pytest.mark.skipif(not SOTU.is_dir(), reason="the speeches are not here")
def test_a_folder_of_speeches_is_one_document_for_each_file(tmp_path: Path) -> None:
    said: list[str] = []
    result = make(config(tmp_path, SOTU), said)
    train, heldout = both(result)
    assert len(train) + len(heldout) == 233
    assert len(heldout) >= 8
    by_name = {document.name: document.text for document in train + heldout}
    assert sorted(by_name) == sorted(path.name for path in SOTU.glob("*.txt"))
    for path in list(SOTU.glob("*.txt"))[::20]:
        assert by_name[path.name].split() == path.read_text(encoding="utf-8").split()
    assert any("left out 2 hidden or side files: PROVENANCE.md, splits.json" in line for line in said)

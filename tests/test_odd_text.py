"""Odd files through all data stages by the command line: a right store, or one clear line; never a traceback."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stage_helpers import make_config, wordy_documents
from test_prepare import as_lists, brute_force

from bertpt.cli.main import run
from bertpt.config import Config
from bertpt.config.schema import Pairs
from bertpt.data.corpus.documents import iter_documents
from bertpt.data.locate import finished_store
from bertpt.data.rows.plan import plan_epoch
from bertpt.data.tokens.paircheck import pair_faults
from bertpt.data.tokens.store import TokenStore

SOUND = "\n\n".join(text.replace("\n", " ") for text in wordy_documents(24)).encode() + b"\n\n"


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def stages(folder: Path, corpus: dict[str, Any]) -> tuple[Config | None, str]:
    """Run the data stages by their commands; the configuration when all went well, and what was said."""
    given_corpus = {"name": "c", "heldout": {"min_documents": 2}, **corpus}
    tokenizer = {"vocab_size": 2000}
    value = {"name": "x", "corpus": given_corpus, "tokenizer": tokenizer, "train": {"phases": [{"steps": 1}]}}
    (folder / "c.yaml").write_text(json.dumps(value))  # JSON is YAML
    out, err = io.StringIO(), io.StringIO()
    with inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for stage in ("download", "train-tokenizer", "prepare"):
            code = run([stage, "--config", "c.yaml"])
            if code:
                break
    said = err.getvalue()
    assert "Traceback" not in said
    if code:
        assert code in (1, 2)
        faults = [line for line in said.split("\n") if line.startswith("bertpt: ")]
        assert faults, said
        assert len(faults[0]) > 20
        assert not (folder / "data" / "c" / "documents").exists() or "documents" not in faults[0].split(":")[1]
        assert not list(folder.glob("data/c/.*.tmp"))
        return None, said
    return make_config(folder / "data", corpus=given_corpus, tokenizer=tokenizer), said


def check_store(config: Config) -> TokenStore:
    """Every sentence as the library alone encodes it, no special id from text, rows that can be planned."""
    store = TokenStore.open(finished_store(config))
    for split in ("train", "heldout"):
        tokens = store.split(split)
        # An overlong sentence is cut, so documents are compared as runs of ids; where nothing is cut, by sentence too.
        ours, theirs = as_lists(tokens), brute_force(config, split)
        assert [list(chain(*document)) for document in ours] == [list(chain(*document)) for document in theirs]
        if not store.manifest["counts"][split]["sentences_cut"]:
            assert ours == theirs
        assert not np.isin(tokens.ids, [0, 2, 3, 4]).any()
    for rule in ("next", "order", "none"):
        if not pair_faults(store.manifest, rule):
            rows = plan_epoch(store.train, Pairs(rule=rule), length=512, seed=0, epoch=0)
            assert (rows["a_length"] + rows["b_length"]).max() + (2 if rule == "none" else 3) <= 512
    return store


# --- any bytes ---------------------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *(
            b"\n",
            b"\n\n",
            b"\r",
            b"\r\n",
            b" ",
            b".",
            b"\xef\xbb\xbf",
            b"\xff\xfe",
            b"\xfe\xff",
            b"\x00",
            b"\x1a",
            b"\xe9",
        ),
        *(b"\x1f\x8b", b"BZh9", b"PK\x03\x04", b"%PDF", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"[SEP]"),
        *(
            text.encode()
            for text in ("a", "é", "e\u0301", "😀", "\u200b", "\u2028", "\x85", "字", "ไทย", "हिन्दी", "שלום")
        ),
        *(b"e.g. this. Next one! ", b"x" * 150, b'{"text": "', b'"}', b"\\ud800", b"\\u0000", b"\t"),
    ]
)
_BYTES = st.binary(max_size=80) | st.lists(_PIECES, max_size=40).map(b"".join)


@settings(deadline=None, max_examples=int(os.environ.get("ODD_TEXTS", "15")), suppress_health_check=list(HealthCheck))
@given(
    data=_BYTES,
    place=st.sampled_from(["before", "after", "alone", "file"]),
    kind=st.sampled_from(["text", "jsonl", "gzip"]),
    errors=st.sampled_from(["strict", "replace"]),
    sentences=st.sampled_from(["split", "lines"]),
)
@example(b"\xff\xfe\x00\xd8", "alone", "text", "replace", "split")
@example(b"caf\xe9\n", "after", "text", "strict", "split")
@example(b"", "alone", "text", "strict", "split")
@example(b'{"text": "\\ud800 half"}\n', "before", "jsonl", "strict", "split")
@example(b"\x1f\x8b", "alone", "text", "strict", "lines")
def test_any_bytes_end_in_a_right_store_or_in_one_clear_line(
    data: bytes, place: str, kind: str, errors: str, sentences: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        text = folder / "text"
        text.mkdir()
        sound = SOUND
        if kind == "jsonl":
            sound = b"".join(
                json.dumps({"text": part.decode()}).encode() + b"\n" for part in SOUND.split(b"\n\n") if part
            )
        whole = {"before": data + sound, "after": sound + data, "alone": data, "file": sound}[place]
        name = "t.jsonl" if kind == "jsonl" else "t.txt"
        (text / name).write_bytes(gzip.compress(whole) if kind == "gzip" else whole)
        if place == "file":
            (text / f"odd{'.jsonl' if kind == 'jsonl' else '.txt'}").write_bytes(data)
        rule = "auto" if kind == "jsonl" else "blank-line"
        source = {"kind": "files", "path": "text", "documents": rule}
        config, said = stages(folder, {"sources": [source], "encoding_errors": errors, "sentences": sentences})
        if config is not None:
            check_store(config)
        else:
            fault = next(line for line in said.split("\n") if line.startswith("bertpt: "))
            assert "text" in fault or "document" in fault
    finally:
        shutil.rmtree(folder)


# --- a folder of odd files, as a new user has ---------------------------------------------------------------------

BODY = "This is a plain text. It has two sentences.\nAnd a second line, e.g. this one. Here it ends."
HUGE = "word " * 400_000 + "end"

READ: dict[str, tuple[bytes, str]] = {
    "bom.txt": (b"\xef\xbb\xbf" + BODY.encode(), BODY),
    "crlf.txt": (BODY.replace("\n", "\r\n").encode(), BODY),
    "cr.txt": (BODY.replace("\n", "\r").encode(), BODY),
    "utf16.txt": (BODY.encode("utf-16"), BODY),
    "utf32be.txt": (b"\x00\x00\xfe\xff" + BODY.encode("utf-32-be"), BODY),
    "packed-without-a-name.txt": (gzip.compress(BODY.encode()), BODY),
    "nul.txt": (b"hel\x00lo there.", "hel lo there."),
    "controls.txt": ("a\u2028b\x0bc\x85d\u200be".encode(), "a b c d e"),
    "joiners.txt": ("می\u200cخواهم. हिन्दी\u200d।".encode(), "می\u200cخواهم. हिन्दी\u200d।"),
    "blank-like.txt": ("One.\n \t\u3000\xa0\nTwo.".encode(), "One.\nTwo."),
    "right-to-left.txt": ("שלום עולם. זה מבחן.\nمرحبا. كيف الحال؟".encode(), "שלום עולם. זה מבחן.\nمرحبا. كيف الحال؟"),
    "cjk.txt": ("日本語の文です。次の文。".encode(), "日本語の文です。次の文。"),
    "thai.txt": ("ภาษาไทยไม่มีช่องว่าง".encode(), "ภาษาไทยไม่มีช่องว่าง"),
    "emoji.txt": ("Smile 😀👩\u200d👩\u200d👧 now.".encode(), "Smile 😀👩\u200d👩\u200d👧 now."),
    "huge-line.txt": (HUGE.encode(), HUGE),
    "huge-word.txt": (b"Before. " + b"x" * 200_000 + b" after.", f"Before. {'x' * 200_000} after."),
    "specials.txt": (b"[CLS] in text [SEP] stays [MASK] text.", "[CLS] in text [SEP] stays [MASK] text."),
    "one-sentence.txt": (b"Alone.", "Alone."),
    "rows.jsonl": (json.dumps({"text": "A row.\r\nIts line. \ud83d"}).encode(), "A row.\nIts line. \ufffd"),
    "no-end.txt": (b"No line end", "No line end"),
}
REFUSED = {
    "latin1.txt": (b"caf\xe9\n", "latin1.txt: line 1, byte 3: 0xe9"),
    "binary.txt": (bytes(range(256)) * 8, "binary.txt"),
    "image.txt": (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "image.txt"),
    "cut.txt": (gzip.compress(BODY.encode() * 50)[:-20], "cut.txt"),
    "rows.jsonl": (b'{"text": "ok"}\n{"txt": "no"}\n', "rows.jsonl: line 2: no 'text'"),
    "utf16-without-a-mark.txt": (BODY.encode("utf-16-le"), "utf16-without-a-mark.txt"),
}


def test_a_folder_of_odd_files_becomes_the_right_store(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name, (data, _) in READ.items():
        (text / name).write_bytes(data)
    (text / "empty.txt").write_bytes(b"")
    (text / ".hidden").write_bytes(b"\xff\x00")
    config, said = stages(tmp_path, {"sources": [{"kind": "files", "path": "text"}], "deduplicate": "none"})
    assert config is not None, said
    store = check_store(config)
    found = json.loads((tmp_path / "data/c/documents/manifest.json").read_text())["counts"]["sources"]["text"]
    # Copies of one text are one held out, or all in training.
    texts = {wanted for _, wanted in READ.values()}
    got = {d.text for split in ("train", "heldout") for d in iter_documents(tmp_path / "data/c/documents", split)}
    assert got == texts
    assert found["duplicates"] == len(READ) - len(texts)
    assert found["byte_order_marks"] == 3
    assert (found["decoded_utf16"], found["decoded_utf32"]) == (1, 1)
    assert found["controls"] == 5
    assert found["surrogates"] == 1
    assert found["empty_files"] == 1
    assert found["files_skipped"] == 1
    for says in ("1 file without text: empty.txt", "3 byte order marks removed", "5 control characters replaced"):
        assert says in said
    counts = store.manifest["counts"]
    assert sum(counts[split]["words_over_100_letters"] for split in ("train", "heldout")) == 1
    assert sum(counts[split]["sentences_cut"] for split in ("train", "heldout")) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_one_odd_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    data, says = REFUSED[name]
    text = tmp_path / "text"
    text.mkdir()
    (text / "sound.txt").write_bytes(SOUND)
    (text / name).write_bytes(data)
    config, said = stages(tmp_path, {"sources": [{"kind": "files", "path": "text"}]})
    assert config is None
    (fault,) = [line for line in said.split("\n") if line.startswith("bertpt: ")]
    assert says in fault
    assert not (tmp_path / "data").exists()

"""Data sets read through ``datasets``: here from local folders; a hub that is away fails in one line, at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertpt.config.schema import HubSource
from bertpt.data.corpus.sources import hub
from bertpt.data.corpus.sources.base import RawDocument, Reading
from bertpt.errors import RequestError

WIKITEXT = [
    "",
    " = Valkyria Chronicles III = \n",
    "",
    " It is a role @-@ playing game , \" Senjō \" ( lit . ) , for 1 @,@ 000 people . \n",
    " = = Gameplay = = \n",
    "",
    " The player 's units move . \n",
    "",
    " = Tower Building = \n",
    " It was built in 1840 – 41 . \n",
]  # fmt: skip
HEADING = r"^\s*= (?!=).+ =\s*$"


def write(path: Path, **columns: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def read(tmp_path: Path, **settings: object) -> tuple[list[RawDocument], Reading]:
    source = HubSource.model_validate({"kind": "hub", "dataset": str(tmp_path / "set"), **settings})
    reading = Reading(tmp_path / "downloads")
    return list(hub.read(source, reading)), reading


@pytest.mark.parametrize("streaming", [False, True])
def test_wikitext_articles_begin_at_their_title(streaming: bool, tmp_path: Path) -> None:
    write(tmp_path / "set" / "train.parquet", text=list(WIKITEXT))
    found, reading = read(tmp_path, documents="heading", heading=HEADING, detokenize="wikitext", streaming=streaming)
    assert found == [
        RawDocument(
            'It is a role-playing game, "Senjō" (lit.), for 1,000 people.\nThe player\'s units move.',
            "Valkyria Chronicles III",
        ),
        RawDocument("It was built in 1840–41.", "Tower Building"),
    ]
    assert reading.counts["rows"] == len(WIKITEXT)


def test_sentence_rows_join_until_an_empty_row(tmp_path: Path) -> None:
    rows = ["the half-ling book .", "it was dark .", "", " \t", "a new book began .", "\u3000", "and another ."]
    write(tmp_path / "set" / "data.parquet", sentence=list(rows))
    found, _ = read(tmp_path, text_column="sentence", documents="blank-line")
    assert [document.text.split("\n") for document in found] == [rows[:2], rows[4:5], rows[6:]]


def test_a_row_is_a_document_called_by_its_title(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.parquet", text=["One.\r\nTwo.\u2028Still two.", None], title=["Cat", None], id=[7, 8])
    found, _ = read(tmp_path)
    assert found == [RawDocument("One.\nTwo.\u2028Still two.", "Cat"), RawDocument("", "8")]


def test_adjacent_rows_of_a_group_join(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.parquet", text=["One.", "Two.", "Three."], book=[1, 1, 2])
    found, _ = read(tmp_path, documents="group", group_column="book")
    assert [document.text for document in found] == ["One.\nTwo.", "Three."]


def test_text_files_in_a_folder_are_lines(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt").write_text("One.\nTwo.\n\nThree.\n", encoding="utf-8")
    found, _ = read(tmp_path, documents="blank-line")
    assert [document.text for document in found] == ["One.\nTwo.", "Three."]


def test_a_validation_split_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train.parquet", text=["One.", "Two."])
    write(tmp_path / "set" / "validation.parquet", text=["Three."])
    found, _ = read(tmp_path, validation_split="validation")
    assert [(document.text, document.heldout) for document in found] == [
        ("Three.", True),
        ("One.", False),
        ("Two.", False),
    ]
    assert [document.heldout for document in read(tmp_path)[0]] == [None, None]


def test_fetched_files_stay_under_the_downloads(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train.parquet", text=["One."])
    _, reading = read(tmp_path)
    assert list((reading.downloads / "hub").rglob("*.arrow"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"text_column": "txt"}, r"no column 'txt' \(text_column\); columns: text, number"),
        ({"documents": "group", "group_column": "bok"}, r"no column 'bok' \(group_column\); columns: text, number"),
        ({"text_column": "number"}, "row 1: column 'number' holds int, not text"),
        ({"split": "trian"}, "trian"),
        ({"config": "de"}, "de"),
        ({"documents": "heading"}, "needs heading"),
        ({"documents": "heading", "heading": "("}, "is no regular expression"),
        ({"documents": "group"}, "needs group_column"),
        ({"dataset": "./no/such/folder"}, "no such folder"),
    ],
)
def test_a_faulty_request_is_one_line(settings: dict[str, object], words: str, tmp_path: Path) -> None:
    write(tmp_path / "set" / "train.parquet", text=["One."], number=[1])
    with pytest.raises(RequestError, match=words) as caught:
        read(tmp_path, **settings)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_of_a_folder_follows_its_files(tmp_path: Path) -> None:
    def of(folder: str, **settings: object) -> str:
        source = HubSource.model_validate({"kind": "hub", "dataset": folder, **settings})
        return hub.fingerprint_inputs(source, Reading(tmp_path))

    for name, text in (("a", "One."), ("b", "One."), ("c", "Two.")):
        write(tmp_path / name / "train.parquet", text=[text])
    a, b, c = (of(str(tmp_path / name)) for name in "abc")
    assert a == b != c
    assert len({of("x/y"), of("x/y", revision="1"), of("x/y", config="de"), of("x/z"), a}) == 5


# --- the hub itself, in a process of its own, as its address is read once ---------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from bertpt.config.schema import HubSource
from bertpt.data.corpus.sources import hub
from bertpt.data.corpus.sources.base import Reading
from bertpt.errors import BertptError
try:
    source = HubSource(kind="hub", dataset="someone/texts", config="en", streaming=sys.argv[2] == "stream")
    list(hub.read(source, Reading(Path(sys.argv[1]))))
except BertptError as error:
    print(type(error).__name__, error)
"""


def ask(endpoint: str, tmp_path: Path, how: str = "whole", **variables: str) -> tuple[str, float]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    environment = {**kept, "HOME": str(tmp_path), "HF_ENDPOINT": endpoint, **variables}
    started = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip(), time.perf_counter() - started


@pytest.mark.parametrize("how", ["whole", "stream"])
def test_no_connection_fails_in_seconds(how: str, tmp_path: Path) -> None:
    said, seconds = ask("http://127.0.0.1:9", tmp_path, how)
    assert said.startswith("SourceUnreachable someone/texts: http://127.0.0.1:9 cannot be reached")
    assert "\n" not in said
    assert seconds < 20  # the client by itself tries for 23 s after its import


def test_offline_mode_is_honoured(tmp_path: Path) -> None:
    said, _ = ask("http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    assert said.startswith("SourceUnreachable someone/texts")


class NotFound(BaseHTTPRequestHandler):
    """A hub that has nothing."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def empty_hub() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), NotFound) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_data_set_that_is_not_there_is_a_faulty_request(empty_hub: str, tmp_path: Path) -> None:
    said, _ = ask(empty_hub, tmp_path)
    assert said.startswith("RequestError someone/texts: Dataset 'someone/texts' doesn't exist on the Hub")

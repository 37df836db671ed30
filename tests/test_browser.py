"""TensorBoard of a real run in a real browser: what each page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, browser, chromium
from train_helpers import Tiny, quiet

from bertpt.train import loop
from bertpt.train.pretrain import pretrain
from bertpt.train.reports.logs import read_metrics

pytestmark = pytest.mark.slow
PROGRAM = chromium()
STEPS = 20


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, killed once on its way."""
    settings = {"eval_every": 5, "save_every": 6, "histograms": True}
    config = tiny.config(tmp_path_factory.mktemp("browser"), train=settings)
    made, count = loop.train_step, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 12:
            raise MemoryError
        return made(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", killed)
        with pytest.raises(MemoryError):
            pretrain(config, say=quiet)
    time.sleep(1)  # TensorBoard's files bear the second of their start, and within one they are in no order
    return pretrain(config, say=quiet).directory


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    """TensorBoard serves the run."""
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        str(run / "tb"),
        "--port",
        "0",
        "--host",
        "127.0.0.1",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"at (http://\S+)", line):
                break
        else:
            pytest.fail("TensorBoard has not started")
        place = found[1].rstrip("/")
        try:
            end = time.monotonic() + 60  # until it has read the run
            while set(json.loads(fetched(f"{place}/data/runs"))) != {".", "train", "heldout", "unigram", "chance"}:
                assert time.monotonic() < end
                time.sleep(0.5)
            yield place
        finally:
            process.terminate()


def fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return bytes(error.read())


@pytest.fixture(scope="module")
def page(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if PROGRAM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        opened.open(address)
        yield opened


def keep(page: Page, name: str) -> None:
    """A picture for people to look at, when they ask for it."""
    if folder := os.environ.get("BERTPT_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.picture(Path(folder) / f"{name}.png")


def test_the_server_shows_no_step_twice_after_a_kill(run: Path, address: str) -> None:
    wanted = [entry["step"] for entry in read_metrics(run / "metrics.jsonl") if entry["kind"] == "train"]
    scalars = json.loads(fetched(f"{address}/data/plugin/scalars/scalars?run=train&tag=learning/mlm_loss"))
    assert [step for _, step, _ in scalars] == wanted == list(range(1, STEPS + 1))
    texts = json.loads(fetched(f"{address}/data/plugin/text/text?run=heldout&tag=heldout/sentences/text_summary"))
    assert [event["step"] for event in texts] == [5, 10, 15, 20]
    texts = json.loads(fetched(f"{address}/data/plugin/text/text?run=.&tag=run/config/text_summary"))
    assert [event["step"] for event in texts] == [0, 6]
    tag = "weights/bert.embeddings.word_embeddings.weight"
    histograms = json.loads(fetched(f"{address}/data/plugin/histograms/histograms?run=train&tag={tag}"))
    assert [event[1] for event in histograms] == [5, 10, 15, 20]
    lines = json.loads(fetched(f"{address}/data/plugin/scalars/scalars?run=unigram&tag=learning/mlm_loss"))
    assert [step for _, step, _ in lines] == [0, STEPS]


# The colours of all lines of all charts.
_COLOURS = """
[...new Set([...document.querySelectorAll("line-chart path[d]")].map((path) => path.style.stroke).filter((c) => c))]
"""


def test_the_first_page_begins_with_losses_beside_their_reference_lines(page: Page) -> None:
    page.turn("#timeseries")
    # A long tag is cut into two pieces of text.
    text = page.wait(lambda text: "learning/nsp_loss" in text.replace("\n", ""))
    for line in ("train", "heldout", "unigram", "chance"):
        assert f"\n{line}\n" in text
    assert "learning/mlm_loss" in text.replace("\n", "")
    groups = re.findall(r"\n(\w+)\n(?:\d+ cards|\d+ card)", text)
    assert groups[0] == "learning"
    page.wait(lambda _: len(page.run(_COLOURS)) >= 4)  # train, heldout, unigram, chance
    keep(page, "first-page")


def test_the_scalars_page_draws_lines(page: Page) -> None:
    page.turn("#scalars")
    text = page.wait(lambda text: "learning" in text and "mlm_loss" in text)
    assert {"optimizer", "speed", "masked_words"} <= set(text.split("\n"))
    keep(page, "scalars")


def test_the_text_page_shows_sentences_configuration_and_corpus(page: Page) -> None:
    page.turn("#text")
    text = page.wait(lambda text: "the model's guesses" in text and "hidden_size" in text)
    assert "[MASK]" in text
    assert "tokens a word" in text
    keep(page, "text")


# Open a node of the graph, as by two clicks; whether it is there.
_OPEN = """
((name) => {
  const find = (node) => {
    if (node.dataset?.name === name && node.classList.contains("node")) return node;
    for (const below of [...(node.shadowRoot?.children ?? []), ...node.children]) {
      const found = find(below);
      if (found) return found;
    }
    return null;
  };
  const shape = find(document.body)?.querySelector(":scope > .nodeshape > .nodecolortarget");
  shape?.dispatchEvent(new MouseEvent("dblclick", {bubbles: true}));
  return Boolean(shape);
})(%s)
"""


def test_the_graph_page_draws_the_model_part_by_part(page: Page) -> None:
    page.turn("#graphs")
    page.wait(lambda _: page.run(_OPEN % json.dumps("BERT")))
    page.wait(lambda _: page.run(_OPEN % json.dumps("BERT/BertForPreTraining[pretraining]")))
    text = page.wait(lambda text: "Bert[bert]" in text.split("\n"))
    assert {"Heads[cls]", "Pooler[pooler]"} <= set(text.split("\n"))
    keep(page, "graph")


def test_the_hparams_page_has_settings_and_final_scores(run: Path, page: Page) -> None:
    page.turn("#hparams")
    last = [entry for entry in read_metrics(run / "metrics.jsonl") if entry["kind"] == "heldout"][-1]
    text = page.wait(lambda text: "TABLE VIEW" in text.upper() and f"{last['mlm_loss']:.6f}"[:4] in text)
    assert "lr" in text.split("\n")
    assert "heldout mlm_loss" in text
    keep(page, "hparams")


def test_the_custom_page_has_charts_of_many_lines(page: Page) -> None:
    page.turn("#custom_scalars")
    text = page.wait(lambda text: "Does it learn?" in text)
    assert "Is the optimizer well?" in text
    assert "gradient norm by block" in text
    keep(page, "custom-scalars")


def test_no_script_of_any_page_has_failed(page: Page) -> None:
    assert page.complaints == []

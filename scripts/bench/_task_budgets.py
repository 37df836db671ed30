"""The tasks of the table: which examples, how long, and with what settings. One entry each.

Every split is honest: ``dev``, by which the epoch is chosen, is held out of the task's train file; the score is that
on the official dev or test file, which nothing was chosen on. All draws are fixed: seeds change the training alone.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Splits = dict[str, str]
"""train, dev (held out of train), test (official): files."""
Split = Callable[[Path, Path], Splits]
"""Makes the files; gets the data folder and the one to write into."""

TRAIN = {"max_length": 128, "batch_size": 16, "lr": 2e-4, "warmup_ratio": 0.1, "log_every": 1000, "device": "cpu"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table.

    Attributes:
        what: of people: data and size.
        metric: the score that is compared (on test) and chooses the epoch (on dev).
        split: makes the files; gets the data folder and the one to write into.
        config: sections of the configuration of ``bertpt finetune``; ``train`` is laid over ``TRAIN``.
        also: further scores to show.
        like: another entry whose transformers runs this one is compared with; ``None``: its own, "": with none.
    """

    what: str
    metric: str
    split: Split
    config: dict[str, Any]
    also: tuple[str, ...] = ()
    like: str | None = None

    def plain(self, splits: Splits, name: str, runs_dir: Path, start: dict[str, Any], seed: int) -> dict[str, Any]:
        """Plain data of the configuration of one run."""
        data = self.config.get("data", {}) | splits
        train = TRAIN | self.config.get("train", {}) | {"seed": seed}
        return self.config | start | {"name": name, "runs_dir": str(runs_dir), "data": data, "train": train}

    def stated(self) -> dict[str, Any]:
        """What a record depends on: a record of other settings is not of this entry."""
        return {"what": self.what, **self.config, "train": TRAIN | self.config.get("train", {})}


def sample(items: Sequence[str], train: int, heldout: int) -> tuple[list[str], list[str]]:
    """So many different items for train and held out, drawn once and for all."""
    distinct = sorted(set(items))
    random.Random(20181011).shuffle(distinct)
    if train + heldout > len(distinct):
        raise SystemExit(f"{train} + {heldout} examples are asked of {len(distinct)}")
    return distinct[:train], distinct[train : train + heldout]


def text_of(path: Path) -> str:
    """A text file, perhaps packed, with or without a mark at its start."""
    packed = path.with_name(path.name + ".gz")
    content = gzip.decompress(packed.read_bytes()) if packed.is_file() else path.read_bytes()
    return content.decode("utf-8-sig").replace("\r\n", "\n")


def lines(train_file: str, test_file: str, train: int, heldout: int, *, header: bool = True) -> Split:
    """Examples that are lines."""

    def split(data: Path, folder: Path) -> Splits:
        found = text_of(data / train_file).removesuffix("\n").split("\n")
        first = found[:1] if header else []
        parts = dict(zip(("train", "dev"), sample(found[len(first) :], train, heldout), strict=True))
        return _written(folder, Path(train_file).suffix, data / test_file, parts, first, "\n")

    return split


def blocks(train_file: str, test_file: str, train: int, heldout: int, test: int) -> Split:
    """Examples between empty lines."""

    def split(data: Path, folder: Path) -> Splits:
        parts = dict(zip(("train", "dev"), sample(sentences(data / train_file), train, heldout), strict=True))
        parts["test"] = sample(sentences(data / test_file), test, 0)[0]
        return _written(folder, Path(train_file).suffix, data / test_file, parts, [], "\n\n")

    return split


def sentences(path: Path) -> list[str]:
    """What stands between empty lines, less the marks of documents."""
    found = (block.strip("\n") for block in text_of(path).split("\n\n"))
    return [block for block in found if block and not block.startswith("-DOCSTART-")]


def questions(train_file: str, test_file: str, counts: tuple[int, int, int], words: tuple[int, int]) -> Split:
    """Questions in the JSON of SQuAD, of contexts of at most so many words; no context is in two parts.

    Args:
        counts: of train, dev and test.
        words: of train and dev, and of test.
    """

    def drawn(path: Path, counts: Sequence[int], words: int) -> list[list[Any]]:
        articles = json.loads(text_of(path))["data"]
        by_context: dict[str, list[Any]] = {}
        for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
            if len(paragraph["context"].split()) <= words:
                by_context.setdefault(paragraph["context"], []).extend(paragraph["qas"])
        contexts = sorted(by_context)
        random.Random(20181011).shuffle(contexts)
        parts: list[list[Any]] = []
        for count in counts:
            part: list[Any] = []
            while sum(len(paragraph["qas"]) for paragraph in part) < count:
                part.append({"context": contexts[0], "qas": by_context[contexts.pop(0)]})
            parts.append(part)
        return parts

    def split(data: Path, folder: Path) -> Splits:
        folder.mkdir(parents=True, exist_ok=True)
        parts = [*drawn(data / train_file, counts[:2], words[0]), *drawn(data / test_file, counts[2:], words[1])]
        made = {}
        for name, part in zip(("train", "dev", "test"), parts, strict=True):
            path = folder / f"{name}.json"
            path.write_text(json.dumps({"data": [{"paragraphs": part}]}), encoding="utf-8")
            made[name] = str(path)
        return made

    return split


def articles(file: str, train: int, heldout: int, test: int, *, category: str, text: str) -> Split:
    """JSON lines without those whose text stands before, the parts balanced by ``category``."""

    def split(data: Path, folder: Path) -> Splits:
        groups: dict[str, dict[str, str]] = {}
        for line in text_of(data / file).splitlines():
            row = json.loads(line)
            groups.setdefault(row[category], {}).setdefault(" ".join(row[text].split()), line)
        parts: dict[str, list[str]] = {"test": [], "dev": [], "train": []}
        for name in sorted(groups):
            rows = sorted(groups[name].values())
            random.Random(20181011).shuffle(rows)
            for part, count in (("test", test), ("dev", heldout), ("train", train)):
                parts[part] += rows[: count // len(groups)]
                del rows[: count // len(groups)]
        folder.mkdir(parents=True, exist_ok=True)
        for part, lines_ in parts.items():
            (folder / f"{part}.jsonl").write_text("".join(f"{line}\n" for line in lines_), encoding="utf-8")
        return {part: str(folder / f"{part}.jsonl") for part in parts}

    return split


def _written(
    folder: Path, suffix: str, test: Path, parts: dict[str, list[str]], first: list[str], between: str
) -> Splits:
    folder.mkdir(parents=True, exist_ok=True)
    made = {"test": str(test)}
    for name, items in parts.items():
        path = folder / f"{name}{suffix}"
        path.write_text(between.join([*first, *items]) + between, encoding="utf-8")
        made[name] = str(path)
    return made


SENTENCE_PAIR = {"text": "sentence1", "pair": "sentence2"}

ENTRIES: dict[str, Entry] = {
    "sst2": Entry(
        what="SST-2, 1,200 rows of train (phrases), dev 872",
        metric="accuracy",
        split=lines("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 1200, 200),
        config={"task": "classification", "data": {"text": "sentence"}, "train": {"epochs": 2}},
    ),
    "cola": Entry(
        what="CoLA, 5,000 rows of train, dev 1,043",
        metric="matthews",
        split=lines("glue/CoLA/train.tsv", "glue/CoLA/dev.tsv", 5000, 500, header=False),
        config={
            "task": "classification",
            "data": {"header": False, "text": -1, "label": 1},
            "train": {"epochs": 3, "lr": 1e-4, "metric": "matthews"},
        },
    ),
    "stsb": Entry(
        what="STS-B, 1,500 rows of train, dev 1,500",
        metric="pearson",
        split=lines("glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", 1500, 250),
        config={
            "task": "classification",
            "regression": True,
            "data": {**SENTENCE_PAIR, "label": "score"},
            "train": {"epochs": 3, "lr": 1e-4},
        },
        also=("spearman",),
    ),
    "rte": Entry(
        what="RTE, 1,000 rows of train, dev 277",
        metric="accuracy",
        split=lines("glue/RTE/train.tsv", "glue/RTE/dev.tsv", 1000, 200),
        config={"task": "classification", "data": SENTENCE_PAIR, "train": {"epochs": 3, "lr": 1e-4}},
    ),
    "sentiment": Entry(
        what="SST-5 in three classes, 800 sentences of train, dev 1,101",
        metric="f1_macro",
        split=lines("sst5/sst_train.txt", "sst5/sst_dev.txt", 800, 200, header=False),
        config={
            "task": "sentiment",
            "data": {
                "format": "fasttext",
                "label_map": {"1": "negative", "2": "negative", "3": "neutral", "4": "positive", "5": "positive"},
            },
            "train": {"epochs": 2, "metric": "f1_macro"},
        },
        also=("accuracy",),
    ),
    "conll": Entry(
        what="CoNLL-2003, 900 sentences of train, 1,500 of testb",
        metric="f1",
        split=blocks("conll2003/eng.train", "conll2003/eng.testb", 900, 250, 1500),
        config={"task": "ner", "data": {"format": "conll"}, "train": {"epochs": 2, "lr": 3e-4}},
    ),
    "upos": Entry(
        what="UD English-EWT UPOS, 900 sentences of train, 1,000 of test",
        metric="accuracy",
        split=blocks("ud_english_ewt/en_ewt-ud-train.conllu", "ud_english_ewt/en_ewt-ud-test.conllu", 900, 250, 1000),
        config={"task": "tagging", "data": {"format": "conllu"}, "train": {"epochs": 2, "lr": 3e-4}},
    ),
    "upos-crf": Entry(
        what="the same with a CRF (transformers: without)",
        metric="accuracy",
        split=blocks("ud_english_ewt/en_ewt-ud-train.conllu", "ud_english_ewt/en_ewt-ud-test.conllu", 900, 250, 1000),
        config={
            "task": "tagging",
            "data": {"format": "conllu"},
            "head": {"crf": True},
            "train": {"epochs": 2, "lr": 3e-4},
        },
        like="upos",
    ),
    "qa": Entry(
        what="QED, 1,000 questions of train on at most 80 words; 400 of XQuAD-en on at most 100",
        metric="f1",
        split=questions("qa/qed_train_squad_format.json", "qa/xquad.en.json", (1000, 150, 400), (80, 100)),
        config={"task": "qa", "train": {"epochs": 2, "lr": 3e-4, "max_length": 192, "doc_stride": 96}},
        also=("exact_match",),
    ),
    "bbc": Entry(
        what="BBC news summaries, 600 articles of train, 150 of test",
        metric="rouge2",
        split=articles("bbc_news_summary/bbc_news_summary.jsonl", 600, 50, 150, category="category", text="article"),
        config={
            "task": "summarization",
            "data": {"headline": True},
            "summary": {"share": "auto"},
            "train": {"epochs": 1, "batch_size": 4, "lr": 2e-4, "max_length": 512},
        },
        also=("rouge1", "rougeL"),
        like="",
    ),
    # For a small encoder of one's own, which learns little from a thousand examples. The demo's and the proof's were
    # pre-trained without dropout; without it here either, SST-2 is learnt by heart (docs/benchmarks.md).
    "sst2-long": Entry(
        what="SST-2, 10,000 rows of train (phrases), dev 872",
        metric="accuracy",
        split=lines("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 10_000, 1000),
        config={
            "task": "classification",
            "data": {"text": "sentence"},
            "train": {"epochs": 3, "lr": 5e-4, "dropout": 0.1},
        },
        like="",
    ),
    "conll-long": Entry(
        what="CoNLL-2003, 6,000 sentences of train, all of testb",
        metric="f1",
        split=blocks("conll2003/eng.train", "conll2003/eng.testb", 6000, 1000, 2900),
        config={"task": "ner", "data": {"format": "conll"}, "train": {"epochs": 4, "lr": 1e-3}},
        like="",
    ),
}

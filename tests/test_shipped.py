"""Every configuration that comes with bertpt passes its dry run: the whole path, at its full shape."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from task_helpers import encoder

from bertpt.cli.main import run
from bertpt.config import load_config, load_finetune, shipped_configs, shipped_tasks

LARGE = {name for name in shipped_configs() if load_config(name).model.hidden_size > 256}


@pytest.mark.parametrize(
    "name",
    # The larger ones take up to minutes and gigabytes.
    [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in shipped_configs()],
)
def test_its_dry_run_passes_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["run", "--config", name, "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: dry run passed")
    assert not list(tmp_path.iterdir())


# --- tasks ------------------------------------------------------------------------------------------------------------

WORDS = ["alpha", "beta", "gamma", "delta", "eats", "sees", "the", "old", "house", "river"]


def sentence(number: int) -> list[str]:
    return [WORDS[(number * 3 + index * (1 + number % 3)) % len(WORDS)] for index in range(5 + number % 3)]


def table(config: Any, count: int) -> str:
    """Rows of texts and labels in the form that the configuration states."""
    data = config.data
    labels = sorted(data.label_map) or ["0", "1"]
    if data.format == "fasttext":
        return "".join(f"__label__{labels[n % len(labels)]}\t{' '.join(sentence(n))}\n" for n in range(count))
    cells = {data.text: lambda n: " ".join(sentence(n)), data.label: lambda n: labels[n % len(labels)]}
    if data.pair is not None:
        cells[data.pair] = lambda n: " ".join(sentence(n + 1))
    if data.header:
        lines = ["\t".join(["index", *cells])]
        return (
            "\n".join([*lines, *("\t".join([str(n), *(of(n) for of in cells.values())]) for n in range(count))]) + "\n"
        )
    rows = []
    for number in range(count):
        row = ["x"] * 4
        for column, of in cells.items():
            row[column] = of(number)
        rows.append("\t".join(row))
    return "\n".join(rows) + "\n"


def columns(config: Any, count: int) -> str:
    """Sentences of tagged words, in CoNLL-U or with entities in the last of four columns."""
    if config.task == "tagging":
        lines = [
            [f"{n}\t{word}\t_\t{'NOUN' if n % 2 else 'VERB'}\tX\t_\t0\troot\t_\t_" for n, word in enumerate(words, 1)]
            for words in map(sentence, range(count))
        ]
    else:
        tags = ["I-LOC", "O", "O", "I-PER", "I-PER"]
        lines = [[f"{word} X X {tags[n % 5]}" for n, word in enumerate(words)] for words in map(sentence, range(count))]
    return "".join("\n".join(block) + "\n\n" for block in lines)


def questions(config: Any, count: int) -> str:
    """The JSON of SQuAD; every fourth question has no answer where the name of the file says 2.0."""
    paragraphs = []
    for number in range(count):
        words = sentence(number)
        question = {"id": str(number), "question": f"what does {words[0]} ?"}
        if number % 4 == 3 and "v2" in config.data.train:
            question |= {"is_impossible": True, "answers": []}
        else:
            question |= {"answers": [{"text": words[1], "answer_start": len(words[0]) + 1}]}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    return json.dumps({"data": [{"title": "x", "paragraphs": paragraphs}]})


def articles(config: Any, count: int) -> str:
    """Articles under a headline, whose summary is their second sentence."""
    rows = []
    for number in range(count):
        body = [" ".join([WORDS[number % 10], *sentence(number + part), str(number)]).capitalize() for part in range(4)]
        rows.append({"article": "A headline\n\n" + ". ".join(body) + ".", "summary": body[1] + "."})
    return "".join(json.dumps(row) + "\n" for row in rows)


MAKERS = {
    "classification": table,
    "sentiment": table,
    "ner": columns,
    "tagging": columns,
    "qa": questions,
    "summarization": articles,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("start"), max_position_embeddings=512)


@pytest.mark.parametrize("name", shipped_tasks())
def test_the_dry_run_of_a_task_passes_on_files_of_its_form_and_leaves_nothing(
    name: str, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config: Any = load_finetune(name, [])
    for place in {config.data.train, config.data.dev, config.data.test} - {None}:
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = MAKERS[config.task](config, 60).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    before = sorted(tmp_path.rglob("*"))
    command = ["finetune", config.task, "--config", name, "--set", f"from={start}", "--dry-run", "--quiet"]
    assert run(command) == 0, capsys.readouterr().err
    assert "dry run passed (1 update of 8 rows" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before

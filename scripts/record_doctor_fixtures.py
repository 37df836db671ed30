"""Record the runs that the tests of `bertpt doctor` judge: tiny ones, healthy and with one fault each.

    python scripts/record_doctor_fixtures.py                      # all, into tests/fixtures/doctor
    python scripts/record_doctor_fixtures.py rate-too-high labels # those whose names begin so
    python scripts/record_doctor_fixtures.py --shift 100 --out /tmp/others    # other seeds: a test of the thresholds

Faults of settings are set; faults of code (labels that moved, a leak) are put into a copy of the running program.
Each run takes seconds on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from bertpt.batch import Batch
from bertpt.config import Config, load_config
from bertpt.data.corpus.download import download
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokens.prepare import prepare
from bertpt.errors import BertptError, Stopped
from bertpt.model.pretraining import BertForPreTraining, pretraining_losses
from bertpt.train import pretrain as pretraining
from bertpt.train.doctor.evidence import Evidence, read_evidence
from bertpt.train.evaluation import evaluate_run
from bertpt.train.updates.step import Terms

OUT = Path(__file__).parents[1] / "tests" / "fixtures" / "doctor"
Patch = Callable[[], contextlib.AbstractContextManager[Any]]


# --- text with something to learn -----------------------------------------------------------------------------


class Language:
    """Made-up words, subjects of texts, and a grammar: what comes next follows from the words around it."""

    def __init__(self, seed: int, subjects: int = 6) -> None:
        draw = random.Random(seed)
        syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
        words = iter(dict.fromkeys("".join(draw.choices(syllables, k=draw.choice((2, 3)))) for _ in range(4000)))
        take = lambda count: [next(words) for _ in range(count)]  # noqa: E731
        self.articles, self.links, self.adjectives = take(3), take(5), take(12)
        self.nouns = [take(8) for _ in range(subjects)]
        nouns = [noun for group in self.nouns for noun in group]
        # Each noun has a verb and an adjective of its own: the words around a gap tell which one is missing.
        self.verbs = dict(zip(nouns, take(len(nouns)), strict=True))
        self.traits = {noun: draw.choice(self.adjectives) for noun in nouns}

    def document(self, draw: random.Random, sentences: int) -> str:
        """Sentences of one subject; what one ends with, the next begins with."""
        nouns = draw.sample(draw.choice(self.nouns), 4)
        subject, lines = draw.choice(nouns), []
        for _ in range(sentences):
            thing = draw.choice(nouns)
            words = [draw.choice(self.articles), self.traits[subject], subject, self.verbs[subject]]
            words += [draw.choice(self.articles), self.traits[thing], thing]
            if draw.random() < 0.5:
                other = draw.choice(nouns)
                words += [draw.choice(self.links), draw.choice(self.articles), other, self.verbs[other]]
            lines.append(" ".join(words).capitalize() + ".")
            subject = thing
        return " ".join(lines)


def texts(seed: int, count: int, sentences: tuple[int, int] = (6, 16), language: int = 1) -> list[str]:
    draw, grammar = random.Random(seed), Language(language)
    return [grammar.document(draw, draw.randint(*sentences)) for _ in range(count)]


def write(path: Path, documents: list[str]) -> None:
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def corpus_plain(folder: Path, seed: int) -> None:
    write(folder / "text.txt", texts(seed, 800))


def corpus_copies(folder: Path, seed: int) -> None:
    documents = texts(seed, 600)
    write(folder / "text.txt", documents + [documents[i % 40] for i in range(600)])


def corpus_random(folder: Path, seed: int) -> None:
    """Few documents of words in no order: there is nothing to learn but the text itself."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("bdfgklmnprst", k=2)) + draw.choice("aeiou") for _ in range(150)]
    sentences = [" ".join(draw.choices(words, k=8)).capitalize() + "." for _ in range(400)]
    write(folder / "text.txt", [" ".join(sentences[i : i + 10]) for i in range(0, 400, 10)])


def corpus_short(folder: Path, seed: int) -> None:
    write(folder / "text.txt", texts(seed, 4000, (2, 3)))


def corpus_two_tongues(folder: Path, seed: int) -> None:
    write(folder / "text.txt", texts(seed, 700))
    write(folder / "other.txt", texts(seed + 1, 700, language=2))


def corpus_letters(folder: Path, seed: int) -> None:
    """With a vocabulary that knows four words of five."""
    documents = texts(seed, 1200)
    write(folder / "text.txt", documents)
    words = sorted({word for text in documents for word in text.lower().replace(".", "").split()})
    (folder / "given").mkdir()
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words[: len(words) * 4 // 5]]
    (folder / "given" / "vocab.txt").write_text("\n".join(known) + "\n", encoding="utf-8")


CORPORA = {name.removeprefix("corpus_"): made for name, made in list(globals().items()) if name.startswith("corpus_")}


# --- faults of code -------------------------------------------------------------------------------------------


def objective(
    change: Callable[[Batch], Batch] = lambda batch: batch, factor: Callable[[], float] = lambda: 1.0
) -> Patch:
    """The objective on changed batches, in training alone; ``factor`` scales its gradient."""

    def changed(model: BertForPreTraining, batch: Batch) -> Terms:
        batch = change(batch)
        losses = pretraining_losses(model(batch), batch)
        terms, right = {"mlm": losses.mlm}, {"mlm": losses.mlm_right}
        if losses.nsp is not None and losses.nsp_right is not None:
            terms["nsp"], right["nsp"] = losses.nsp, losses.nsp_right
        if (scale := factor()) != 1.0:  # the value stays as it is
            terms = {
                name: term._replace(sum=term.sum.detach() + scale * (term.sum - term.sum.detach()))
                for name, term in terms.items()
            }
        return Terms(terms, right)

    return lambda: mock.patch.object(pretraining.PreTraining, "objective", staticmethod(changed))


def random_labels(batch: Batch) -> Batch:
    """Labels that are no words of the text."""
    assert batch.masked_labels is not None
    return dataclasses.replace(batch, masked_labels=torch.randint_like(batch.masked_labels, 5, 340))


def visible_answers(batch: Batch) -> Batch:
    """No mask at all: the answer stands at its place."""
    assert batch.masked_positions is not None
    assert batch.masked_labels is not None
    ids = batch.input_ids.clone()
    ids[batch.masked_positions] = batch.masked_labels
    return dataclasses.replace(batch, input_ids=ids)


def random_pair_labels(batch: Batch) -> Batch:
    return dataclasses.replace(batch, next_sentence_label=torch.randint(2, (batch.rows,)))


def told_pair_labels(batch: Batch) -> Batch:
    """The segment ids of random pairs give them away."""
    assert batch.next_sentence_label is not None
    row = torch.bucketize(torch.arange(batch.tokens), batch.first, right=True) - 1
    types = torch.where(batch.next_sentence_label[row] == 1, 0, batch.token_type_ids)
    return dataclasses.replace(batch, token_type_ids=types)


def broken_now_and_then() -> contextlib.AbstractContextManager[Any]:
    """One update in twenty has a loss that is no number."""
    numbers = itertools.count()
    return objective(factor=lambda: math.nan if next(numbers) % 20 == 19 else 1.0)()


def slow_data() -> contextlib.AbstractContextManager[Any]:
    """Each batch takes its time."""
    usual = pretraining.PreTraining.updates

    def slow(self: Any, done: int) -> Iterator[Any]:
        for batches in usual(self, done):
            time.sleep(0.03)
            yield batches

    return mock.patch.object(pretraining.PreTraining, "updates", slow)


# --- the runs -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """One run: what the doctor must find, its corpus, its settings, the fault in its code."""

    expects: tuple[str, ...] = ()
    corpus: str = "plain"
    settings: tuple[str, ...] = ()
    patch: Patch = contextlib.nullcontext
    stop_at: int | None = None  # judge the run as it stood then


def steps(count: int, **more: int) -> str:
    phase = {"length": 48, "steps": count, "batch_size": 16} | more
    return f"train.phases=[{json.dumps(phase)}]"


LONG = steps(400, batch_size=20)
PHASES = 'train.phases=[{"length": 32, "steps": 200, "batch_size": 24}, {"length": 64, "steps": 100, "batch_size": 12}]'
DEEP = ("model.num_hidden_layers=4", "train.optimizer.lr=5e-3")

CASES = {
    "healthy-plain": Case(),
    "healthy-long": Case(settings=(LONG,)),
    "healthy-words-alone": Case(settings=("pairs.rule=none",)),
    "healthy-order": Case(settings=("pairs.rule=order",)),
    "healthy-whole-words": Case(settings=("masking.unit=whole-word", "masking.rate=0.3")),
    "healthy-deep": Case(settings=(*DEEP, "train.schedule.warmup_ratio=0.15", LONG)),
    "healthy-wide": Case(settings=("model.hidden_size=128", "train.optimizer.lr=2e-3")),
    "healthy-phases": Case(settings=(PHASES,)),
    "healthy-dropout": Case(settings=("model.hidden_dropout_prob=0.1", "model.attention_probs_dropout_prob=0.1")),
    "healthy-cosine": Case(settings=("train.schedule.kind=cosine", LONG)),
    "healthy-constant": Case(settings=("train.schedule.kind=constant", "train.optimizer.lr=2e-3")),
    "healthy-two-tongues": Case(corpus="two_tongues", settings=("pairs.random_from=source", LONG)),
    "healthy-half-way": Case(stop_at=100),
    "healthy-just-begun": Case(stop_at=30),
    "rate-too-high": Case(("rate-too-high",), settings=("train.optimizer.lr=0.1",)),
    "rate-too-high-constant": Case(
        ("rate-too-high",), settings=("train.optimizer.lr=0.03", "train.schedule.kind=constant")
    ),
    "rate-too-high-no-clip": Case(
        ("rate-too-high",),
        settings=("train.optimizer.lr=0.5", "train.optimizer.betas=[0.0, 0.9]", "train.clip=1e9"),
    ),
    "rate-too-low": Case(("rate-too-low",), settings=("train.optimizer.lr=2e-5",)),
    "warmup-too-short": Case(("warmup-too-short",), settings=(*DEEP, "train.schedule.warmup_ratio=0", LONG)),
    "gradients-explode": Case(("gradients-explode",), patch=objective(factor=lambda: 300.0)),
    "gradients-dead": Case(("gradients-dead",), patch=objective(factor=lambda: 1e-10)),
    "not-finite": Case(("not-finite",), patch=broken_now_and_then),
    "not-finite-stopped": Case(("not-finite",), settings=("train.optimizer.lr=1e6", "train.clip=1e9")),
    "labels-off": Case(("labels-off",), patch=objective(random_labels)),
    "masks-off": Case(("masks-off",), patch=objective(visible_answers)),
    "pairs-leak": Case(("pairs-leak",), patch=objective(told_pair_labels)),
    "pairs-leak-sources": Case(  # judged by shares of labels, which vary much in 120 rows
        ("pairs-leak",), corpus="two_tongues", settings=("pairs.random_from=corpus", "evaluate.max_rows=2000")
    ),
    "pairs-at-chance": Case(("pairs-at-chance",), settings=(LONG,), patch=objective(random_pair_labels)),
    "pairs-at-chance-weight": Case(("pairs-at-chance",), settings=(LONG, "train.nsp_weight=0")),
    "copies": Case(("copies",), corpus="copies"),
    "unknown-words": Case(("unknown-words",), corpus="letters", settings=("tokenizer.from=FOLDER/given/vocab.txt",)),
    "padding": Case(("padding",), corpus="short", settings=(steps(250, length=128),)),
    "data-bound": Case(("data-bound",), patch=slow_data),
    "overfitting": Case(
        ("overfitting",),
        corpus="random",
        settings=("pairs.rule=none", "masking.dupe_factor=1", "train.optimizer.lr=2e-3", steps(300)),
    ),
    "plateau": Case(("plateau",), settings=(steps(60),)),
}


def settings_of(data: Path, corpus: str, overrides: tuple[str, ...], seed: int, name: str) -> Config:
    value = {
        "name": name,
        "data_dir": str(data / "data"),
        "runs_dir": str(data / "runs"),
        "corpus": {
            "name": corpus,
            "sources": [
                {"kind": "files", "path": str(path), "documents": "blank-line"}
                for path in sorted((data / corpus).glob("*.txt"))
            ],
        },
        "tokenizer": {"vocab_size": 500},
        "model": {
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 128,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.1,
        },
        "train": {
            "phases": [{"length": 48, "steps": 250, "batch_size": 16}],
            "optimizer": {"lr": 4e-3},
            "schedule": {"warmup_ratio": 0.06},
            "seed": seed,
            "log_every": 10,
            "eval_every": 50,
            "save_every": 100000,
            "device": "cpu",
        },
        "evaluate": {"max_rows": 120, "batch_size": 60},
    }
    path = data / "configs" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return load_config(
        path.rename(path.with_suffix(".yaml")),
        [override.replace("FOLDER", str(data / corpus)) for override in overrides],
    )


def rounded(value: Any) -> Any:
    """Five digits are enough, and keep the files small."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def record(name: str, case: Case, data: Path, seed: int) -> dict[str, Any]:
    quiet = lambda line: None  # noqa: E731
    if not (data / case.corpus).is_dir():  # the first run chooses the text of all that share it
        (data / case.corpus).mkdir()
        CORPORA[case.corpus](data / case.corpus, seed)
    config = settings_of(data, case.corpus, case.settings, seed, name)
    for stage in (download, train_tokenizer, prepare):
        stage(config, say=quiet, progress=False)
    with case.patch():
        try:
            pretraining.pretrain(config, say=quiet, progress=False)
        except Stopped:
            raise
        except BertptError:  # numbers that are not finite stop a run
            pass
        else:
            if case.stop_at is None:
                evaluate_run(data / "runs" / name, say=quiet)
    evidence = read_evidence(data / "runs" / name)
    if case.stop_at is not None:
        metrics = [entry for entry in (*evidence.train, *evidence.heldout) if entry["step"] <= case.stop_at]
        evidence = Evidence.of(evidence.config, evidence.text, metrics, {})
    return rounded({"expects": list(case.expects), **evidence.as_dict()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="record those whose names begin so")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--shift", type=int, default=0, help="added to every seed, of text and training")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, case) in enumerate(CASES.items()):
            if options.names and not name.startswith(tuple(options.names)):
                continue
            begun = time.monotonic()
            value = record(name, case, Path(folder), 1 + number + options.shift)
            (options.out / f"{name}.json").write_text(json.dumps(value) + "\n", encoding="utf-8")
            print(f"{name}: {time.monotonic() - begun:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

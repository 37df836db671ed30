"""``bertpt predict fill-mask | embed | classification | sentiment | ner | tagging | qa | summarization``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bertpt.cli import options
from bertpt.progress import counted

if TYPE_CHECKING:
    from bertpt.predict.texts import Text

app = typer.Typer(help="Use a trained model on given text.", rich_markup_mode=None)

Texts = Annotated[list[str] | None, typer.Argument(help="Texts; by default the lines of stdin.")]
File = Annotated[Path | None, typer.Option("--file", "-f", help="Read texts from a file, one a line.")]
Split = Annotated[
    Literal["punctuation", "whitespace"],
    typer.Option("--split", help="Where words end: at white space and punctuation marks, or white space alone."),
]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        help="A run, a checkpoint, or a directory made by `bertpt import` or transformers; default: the newest run.",
    ),
]


@app.callback(invoke_without_command=True, epilog=options.examples("bertpt predict fill-mask 'the [MASK] of israel'"))
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _texts(texts: list[str] | None, file: Path | None) -> list[Text]:
    from bertpt.predict.texts import read_texts

    return read_texts(texts, file, sys.stdin.buffer)


def _place(model: Path | None, runs_dir: Path | None) -> Path:
    from bertpt.train.rundir import newest_run

    return model or newest_run(runs_dir or Path("runs"))


@app.command(
    "fill-mask",
    epilog=options.examples(
        "bertpt predict fill-mask 'the [MASK] of israel'", "cat lines.txt | bertpt predict fill-mask"
    ),
)
def fill_mask(
    texts: Texts = None,
    file: File = None,
    model: Model = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Guesses for each [MASK].")] = 5,
    runs_dir: options.RunsDir = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Guess the words behind [MASK], with their probabilities. A text may hold several."""
    from bertpt.predict.fill_mask import Predictor
    from bertpt.predict.texts import without_blank

    predictor = Predictor.open(_place(model, runs_dir), say=options.sayer(quiet))
    given = _texts(texts, file) if texts else without_blank(_texts(texts, file), options.sayer(quiet))
    for (_, text), found in zip(given, predictor.fill_masks(given, top=top, shown=not quiet), strict=True):
        for number, filled in enumerate(found, 1):
            if as_json:
                typer.echo(json.dumps({"text": text, "mask": number, **dataclasses.asdict(filled)}, ensure_ascii=False))
                continue
            typer.echo(f"{text} [{number}]: {filled.said(digits=1)}")


@app.command(
    "embed",
    epilog=options.examples(
        "bertpt predict embed 'the bank of the river' 'money in the bank'",
        "bertpt predict embed --file lines.txt --pooling mean --layers -1,-2 --out vectors.npz",
    ),
)
def embed(
    texts: Texts = None,
    file: File = None,
    model: Model = None,
    layers: Annotated[
        str, typer.Option("--layers", help="Layers between commas: 1 is the first, -1 the last, 0 the embeddings.")
    ] = "-1",
    combine: Annotated[
        Literal["mean", "concat"], typer.Option("--combine", help="Average several layers, or put them in a row.")
    ] = "mean",
    pooling: Annotated[
        Literal["word", "mean", "cls"],
        typer.Option("--pooling", help="A vector for each word; or one for each text: mean of all tokens, or [CLS]."),
    ] = "word",
    split: Split = "punctuation",
    out: Annotated[Path | None, typer.Option("--out", help="Write a NumPy archive (.npz), not JSON lines.")] = None,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Contextual vectors of words or texts, as JSON lines or a NumPy archive.

    Texts longer than the model's positions are read in windows that overlap by half; --pooling cls refuses them.
    """
    from bertpt.errors import RequestError
    from bertpt.predict.embed import Embedder, json_lines, write_npz

    if out is not None and out.suffix != ".npz":
        raise RequestError(f"--out: {out}: a name ending in .npz is expected; without --out, JSON lines go to stdout")
    embedder = Embedder.open(
        _place(model, runs_dir),
        layers=layers,
        combine=combine,
        pooling=pooling,
        punctuation=split == "punctuation",
        say=options.sayer(quiet),
    )
    embeddings = embedder.embed(_texts(texts, file), shown=not quiet)
    if out is None:
        for line in json_lines(embeddings, pooling):
            typer.echo(line)
        return
    rows, width = write_npz(out, embeddings, pooling)
    options.sayer(quiet)(f"{out}: {counted(rows, 'vectors')} of {width:,} numbers")


TaskRunPlace = Annotated[
    Path | None, typer.Option("--model", "-m", help="A run of `bertpt finetune`; default: the newest one.")
]


def _classification(
    texts: Texts = None,
    file: File = None,
    model: TaskRunPlace = None,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Label and probabilities (or score) of each text, as JSON lines; a pair is two texts with a tab between."""
    from bertpt.predict.tasks import TaskPredictor, labelled_texts
    from bertpt.tasks.rundir import newest_task_run

    place = model or newest_task_run(runs_dir or Path("runs"))
    predictor = TaskPredictor.open(place, "classification", "sentiment")
    examples = labelled_texts(_texts(texts, file), predictor.facts)
    for found in predictor.predict(examples, say=options.sayer(quiet), shown=not quiet):
        typer.echo(json.dumps(found, ensure_ascii=False))


for _task in ("classification", "sentiment"):
    app.command(
        _task,
        epilog=options.examples(
            f"bertpt predict {_task} 'a film to remember' --model runs/mine",
            f"bertpt predict {_task} --file texts.txt --model runs/mine > labels.jsonl",
        ),
    )(_classification)


def _tagging(task: str) -> Callable[..., None]:
    def tag(
        texts: Texts = None,
        file: Annotated[
            Path | None,
            typer.Option("--file", "-f", help="Words (.conll, .conllu, .jsonl, .parquet), or else texts, one a line."),
        ] = None,
        model: TaskRunPlace = None,
        split: Split = "punctuation",
        runs_dir: options.RunsDir = None,
        quiet: options.Quiet = False,
        verbose: options.Verbose = False,
        debug: options.Debug = False,
    ) -> None:
        from bertpt.predict.tagging import holds_words, read_words, split_texts
        from bertpt.predict.tasks import TaskPredictor
        from bertpt.tasks.rundir import newest_task_run, open_task_run

        place = model or newest_task_run(runs_dir or Path("runs"))
        predictor = TaskPredictor.open(place, task)
        if file is not None and not texts and holds_words(file):
            examples = read_words(file, open_task_run(place).config)
        else:
            examples = split_texts(_texts(texts, file), predictor.tokenizer, punctuation=split == "punctuation")
        for found in predictor.predict(examples, say=options.sayer(quiet), shown=not quiet):
            typer.echo(json.dumps(found, ensure_ascii=False))

    what = "Entities and the tag of each word" if task == "ner" else "A tag for each word"
    tag.__doc__ = f"{what}, as JSON lines with places in the text."
    return tag


for _task, _example in (("ner", "Ada Lovelace was born in London."), ("tagging", "She reads the letter.")):
    app.command(
        _task,
        epilog=options.examples(
            f"bertpt predict {_task} '{_example}' --model runs/mine",
            f"bertpt predict {_task} --file sentences.conll --model runs/mine > tags.jsonl",
        ),
    )(_tagging(_task))


@app.command(
    "qa",
    epilog=options.examples(
        "bertpt predict qa --question 'Who wrote it?' --context 'It was written by Ada in 1843.' --model runs/mine",
        "bertpt predict qa --file questions.json --model runs/mine > answers.jsonl",
    ),
)
def qa(
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Questions, each with its context behind a tab; by default the lines of stdin."),
    ] = None,
    question: Annotated[str | None, typer.Option("--question", help="One question.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="The text that may hold its answer.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Questions as SQuAD's JSON, JSON lines or Parquet.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Answers to each question, best first.")] = 1,
    model: TaskRunPlace = None,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """The answer to each question as a piece of its context, as JSON lines: text, characters, probability.

    An empty answer says that the context holds none. With --top, n_best lists so many answers.
    """
    from bertpt.errors import RequestError
    from bertpt.predict.tasks import TaskPredictor, unanswered, unanswered_file
    from bertpt.predict.texts import Text
    from bertpt.tasks.rundir import newest_task_run

    if (question is None) is not (context is None):
        raise RequestError("--question, --context: give both, or neither")
    if sum((question is not None, file is not None, bool(texts))) > 1:
        raise RequestError("--question, --file, texts: questions were given in two ways; give one of them")
    tab = "\t"
    predictor = TaskPredictor.open(model or newest_task_run(runs_dir or Path("runs")), "qa")
    if file is not None:
        examples = unanswered_file(file)
    elif question is not None:
        examples = unanswered([Text("--question, --context", f"{question.replace(tab, ' ')}{tab}{context}")])
    else:
        examples = unanswered(_texts(texts, None))
    for found in predictor.predict(examples, say=options.sayer(quiet), shown=not quiet):
        kept = found.pop("n_best")[:top]
        typer.echo(json.dumps(found | ({"n_best": kept} if top > 1 else {}), ensure_ascii=False))


@app.command(
    "summarization",
    epilog=options.examples(
        "bertpt predict summarization --file article.txt --model runs/mine",
        "bertpt predict summarization --file articles.jsonl --k 3 > summaries.jsonl",
    ),
)
def summarization(
    texts: Annotated[list[str] | None, typer.Argument(help="Articles; by default stdin is one.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="One article, or many where its name ends in .jsonl.")
    ] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="stdin holds JSON lines, an article each.")] = False,
    model: TaskRunPlace = None,
    k: Annotated[int | None, typer.Option("--k", min=1, help="Sentences of a summary; default: as trained.")] = None,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Choose the sentences that say the most, as JSON lines: number, place in the text, score.

    Blank lines end paragraphs; where there are none, line ends do.
    """
    from bertpt.predict.articles import read_given
    from bertpt.predict.tasks import TaskPredictor
    from bertpt.tasks.rundir import newest_task_run

    predictor = TaskPredictor.open(model or newest_task_run(runs_dir or Path("runs")), "summarization")
    if k is not None:
        predictor.facts.update(k=k, share=None)
    articles = read_given(texts, file, sys.stdin.buffer, predictor.facts, jsonl=jsonl)
    for found in predictor.predict(articles, say=options.sayer(quiet), shown=not quiet):
        typer.echo(json.dumps(found, ensure_ascii=False))

"""The model card of an export: what is known from the files, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertpt.config import Config, plain
from bertpt.config.schema import Phase
from bertpt.data.rows.plan import PAIR_WORDS
from bertpt.files import read_json
from bertpt.interop.pretrained import Pretrained
from bertpt.train.rundir import open_run

_SCORES = {
    "mlm_loss": "masked words: loss (nats)",
    "mlm_perplexity": "masked words: perplexity",
    "mlm_accuracy": "masked words: accuracy",
    "nsp_accuracy": "sentence pairs: accuracy",
    "nsp_balanced_same_source": "sentence pairs: balanced accuracy within a source",
    "unigram_loss": "baseline, corpus unigrams: loss (nats)",
    "document_count_loss": "baseline, counts of the document: loss (nats)",
    "most_frequent_accuracy": "baseline, most frequent token: accuracy",
    "majority_accuracy": "baseline, majority label of pairs: accuracy",
    "source_detector_accuracy": "baseline, source detector of pairs: accuracy",
    "length_detector_accuracy": "baseline, length detector of pairs: accuracy",
}

OPTIMIZERS = {"adamw": "AdamW", "lamb": "LAMB"}


def model_card(pretrained: Pretrained, source: Path, architecture: str) -> str:
    """The README of an export: model, data, recipe and scores, as far as ``source`` knows them."""
    return "\n".join(_lines(pretrained, source, architecture)) + "\n"


def _lines(pretrained: Pretrained, source: Path, architecture: str) -> Iterator[str]:
    model = pretrained.model
    run = source if (source / "config.yaml").is_file() else source.resolve().parent.parent
    config = open_run(run).config if (run / "config.yaml").is_file() else None
    yield from _front_matter(pretrained, config)
    yield f"# {config.name if config else source.resolve().name}"
    yield ""
    yield (
        f"A BERT of {model.num_hidden_layers} layers x {model.hidden_size}, {model.num_attention_heads} heads,"
        f" {model.max_position_embeddings} positions, a WordPiece vocabulary of {pretrained.vocab_size:,}"
        f" ({'lower-cased' if pretrained.normalising.lowercase else 'cased'}),"
        f" {sum(tensor.numel() for tensor in pretrained.weights.values()):,} parameters. Made with bertpt."
    )
    yield ""
    yield from _usage(pretrained, architecture)
    if config is None:
        kind = pretrained.origin.removeprefix(str(source))
        yield f"The weights come from {source.resolve().name}{kind}; how they were trained is not known here."
        return
    yield from _data(run, config)
    yield from _recipe(config, pretrained)
    yield from _scores(run)


def _front_matter(pretrained: Pretrained, config: Config | None) -> Iterator[str]:
    yield "---"
    yield "library_name: transformers"
    if config is not None:
        yield f"language: {json.dumps(config.corpus.language)}"
    if "mlm" in pretrained.heads:
        yield "pipeline_tag: fill-mask"
    yield "tags: [bert, bertpt]"
    yield "---"
    yield ""


def _usage(pretrained: Pretrained, architecture: str) -> Iterator[str]:
    yield "```python"
    if "mlm" in pretrained.heads:
        yield "from transformers import pipeline"
        yield ""
        yield 'print(pipeline("fill-mask", model="DIRECTORY")("... [MASK] ..."))'
    else:
        yield f"from transformers import AutoTokenizer, {architecture}"
        yield ""
        yield 'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")'
        yield f'model = {architecture}.from_pretrained("DIRECTORY")'
    yield "```"
    yield ""
    if not pretrained.pooler:
        yield (
            "It was trained without sentence pairs and has no pooler: `AutoModel` initialises one at random unless it"
            " is told `add_pooling_layer=False`."
        )
        yield ""
    yield (
        "Text that reads `[MASK]`, `[SEP]` or another special token is that token to the exported tokenizer, as"
        " everywhere in transformers; in training such text was words."
    )
    yield ""


def _data(run: Path, config: Config) -> Iterator[str]:
    yield "## Data"
    yield ""
    for source in config.corpus.sources:
        shown = {key: value for key, value in plain(source).items() if value not in (None, [], "")}
        if source.weight is None:  # then it limits nothing
            del shown["max_repeats"]
        if Path(str(shown.get("path", ""))).is_absolute():
            shown["path"] = Path(shown["path"]).name
        yield f"- {', '.join(f'{key}: `{value}`' for key, value in shown.items())}"
    counts = _store_counts(run, config)
    if counts:
        train, heldout = counts["train"], counts["heldout"]
        yield ""
        yield (
            f"{train['documents']:,} training documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens;"
            f" {heldout['documents']:,} documents held out."
        )
    yield ""


def _store_counts(run: Path, config: Config) -> dict[str, Any] | None:
    """Counts of the token store that the run was trained on, if it still lies where it lay."""
    wanted = read_json(run / "run.json").get("store")
    for path in Path(config.data_dir, config.corpus.folder).glob("tokens-*/manifest.json"):
        manifest = read_json(path)
        if manifest.get("fingerprint") == wanted and {"train", "heldout"} <= set(manifest.get("counts", {})):
            return dict(manifest["counts"])
    return None


def _rows(phase: Phase) -> str:
    return f"{phase.batch_size:,}" if phase.ramp is None else f"{phase.ramp.batch_size:,} to {phase.batch_size:,}"


def _recipe(config: Config, pretrained: Pretrained) -> Iterator[str]:
    train, masking = config.train, config.masking
    yield "## Recipe"
    yield ""
    for phase in train.phases:
        yield f"- {phase.steps:,} updates of {_rows(phase)} rows of up to {phase.length} tokens"
    unit = {"token": "", "whole-word": ", whole words", "ngram": f", runs of 1 to {masking.max_ngram} words"}
    static = f", static masks ({masking.dupe_factor} in turn)" if masking.dupe_factor else ""
    yield f"- {masking.rate:.0%} of the tokens masked{unit[masking.unit]}{static}"
    words = PAIR_WORDS.get(config.pairs.rule)
    pairs = f"sentence pairs: 0 = {words[0]}, 1 = {words[1]}" if words else "no sentence pairs"
    yield f"- {pairs}; dropout {pretrained.model.hidden_dropout_prob}"
    optimizer = train.optimizer
    yield (
        f"- {OPTIMIZERS[optimizer.kind]}, peak rate {optimizer.lr}, {train.schedule.kind} after the warm-up,"
        f" weight decay {optimizer.weight_decay}, clip {train.clip}, seed {train.seed}"
    )
    yield f"- weights: {Path(pretrained.origin).name}"
    yield ""


def _scores(run: Path) -> Iterator[str]:
    yield "## Scores on held-out text"
    yield ""
    if not (run / "eval.json").is_file():
        yield "Not evaluated (`bertpt eval`)."
        return
    value = read_json(run / "eval.json")
    yield f"After update {value['step']}, {value['rows']:,} rows of up to {value['length']} tokens."
    yield ""
    yield "| | |"
    yield "|---|---|"
    figures = value["scores"] | value["baselines"]
    for name, text in _SCORES.items():
        if figures.get(name) is not None:
            yield f"| {text} | {figures[name]:.4g} |"

"""Combinations of settings that cannot work, found before any work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from bertpt.config.languages import language_code
from bertpt.config.schema import (
    AnySource,
    Config,
    Corpus,
    FilesSource,
    HubSource,
    Masking,
    Phase,
    Ramp,
    Source,
    WikidumpSource,
)
from bertpt.errors import RequestError

SHOWN = 60  # most characters of a faulty value in a message
MAX_SOURCES = 256  # the token store numbers sources in one byte


class Impossible(NamedTuple):
    """One combination that cannot work: the keys that take part, and the line for the user."""

    keys: tuple[str, ...]
    line: str


def nearest_divisor(number: int, wanted: float) -> int:
    """The divisor of ``number`` that is closest to ``wanted``, the smaller of two."""
    return min(_divisors(number), key=lambda n: abs(n - wanted))


def nearest_proper_divisor(number: int, wanted: float) -> int | None:
    """The same of those below ``number``; 1 has none."""
    return min(_divisors(number)[:-1], key=lambda n: abs(n - wanted), default=None)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def impossible(config: Config) -> Iterator[Impossible]:
    """Each combination that cannot work, with the values and what to set instead."""
    yield from _model(config)
    yield from _train(config)
    yield from _tokenizer(config)
    yield from _examples(config)
    yield from _heldout(config)
    yield from _quality(config)
    yield from _sources(config)
    yield from _language(config)


def _model(config: Config) -> Iterator[Impossible]:
    model = config.model
    if model.hidden_size % model.num_attention_heads and not _of_weights(config, "hidden_size", "num_attention_heads"):
        nearest = nearest_divisor(model.hidden_size, model.num_attention_heads)
        yield Impossible(
            ("model.num_attention_heads", "model.hidden_size"),
            f"model.num_attention_heads: {model.num_attention_heads} does not divide model.hidden_size"
            f" {model.hidden_size}; the nearest that does is {nearest}",
        )
    if config.pairs.rule != "none" and model.type_vocab_size < 2:
        yield Impossible(
            ("model.type_vocab_size", "pairs.rule"),
            f"model.type_vocab_size: {model.type_vocab_size}, pairs need 2 segments; set 2, or pairs.rule=none",
        )


def _language(config: Config) -> Iterator[Impossible]:
    if config.corpus.sentences == "split":
        try:
            language_code(config.corpus.language)
        except RequestError as error:
            yield Impossible(("corpus.language", "corpus.sentences"), str(error))


def _of_weights(config: Config, *keys: str) -> bool:
    """Whether a key of the shape is not known yet: it comes from the weights of ``model.init_from``."""
    return config.model.init_from is not None and not config.model.model_fields_set.issuperset(keys)


def _train(config: Config) -> Iterator[Impossible]:
    phases = config.train.phases
    positions = config.model.max_position_embeddings
    for index, phase in enumerate(phases):
        where = f"train.phases.{index}"
        if phase.length > positions and not _of_weights(config, "max_position_embeddings"):
            yield Impossible(
                (f"{where}.length", "model.max_position_embeddings"),
                f"{where}.length: {phase.length} is above model.max_position_embeddings {positions};"
                f" set {positions} or less",
            )
        if phase.batch_size % phase.parts:
            nearest = nearest_divisor(phase.batch_size, phase.parts)
            yield Impossible(
                (f"{where}.accumulate", f"{where}.batch_size"),
                f"{where}.accumulate: {phase.accumulate} does not divide {where}.batch_size {phase.batch_size};"
                f" the nearest that does is {nearest}",
            )
        if phase.ramp is not None:
            yield from _ramp(where, phase, phase.ramp)
    if config.train.device == "cpu":
        if config.train.precision == "fp16":
            yield Impossible(
                ("train.precision", "train.device"),
                "train.precision: fp16 needs a CUDA device, train.device is cpu; set train.precision=fp32",
            )
        if config.train.tf32:
            yield Impossible(
                ("train.tf32", "train.device"),
                "train.tf32: has no effect with train.device: cpu; leave it false",
            )
    total = sum(phase.steps for phase in phases)
    schedule = config.train.schedule
    of = None
    if config.train.budget is not None:
        of = "train.budget", "time"
    elif schedule.over == "tokens":
        of = "train.schedule.over", "tokens"
    if of is not None and schedule.warmup_steps:
        key, measure = of
        yield Impossible(
            ("train.schedule.warmup_steps", key),
            f"train.schedule.warmup_steps: with {key} the warm-up is a share of the {measure}; set"
            " train.schedule.warmup_ratio, and train.schedule.warmup_steps=null",
        )
    elif schedule.warmup_steps is not None and schedule.warmup_steps >= total:
        yield Impossible(
            ("train.schedule.warmup_steps", "train.phases"),
            f"train.schedule.warmup_steps: {schedule.warmup_steps} must be below the {total} steps of"
            f" all phases; {total // 10} would be a tenth",
        )
    if schedule.warmup_steps is not None and schedule.warmup_ratio:
        yield Impossible(
            ("train.schedule.warmup_steps", "train.schedule.warmup_ratio"),
            "train.schedule: warmup_steps and warmup_ratio are both set; remove one",
        )


def _ramp(where: str, phase: Phase, ramp: Ramp) -> Iterator[Impossible]:
    if phase.batch_size % ramp.batch_size or ramp.batch_size == phase.batch_size:
        near = nearest_proper_divisor(phase.batch_size, ramp.batch_size)
        yield Impossible(
            (f"{where}.ramp.batch_size", f"{where}.batch_size"),
            f"{where}.ramp.batch_size: {ramp.batch_size} is no divisor below {where}.batch_size {phase.batch_size};"
            + (" leave ramp out" if near is None else f" the nearest is {near}"),
        )
    if ramp.steps >= phase.steps:
        fitting = f"{phase.steps // 10} would be a tenth" if phase.steps >= 10 else f"set {phase.steps // 2}"
        yield Impossible(
            (f"{where}.ramp.steps", f"{where}.steps"),
            f"{where}.ramp.steps: {ramp.steps} must be below {where}.steps {phase.steps};"
            f" {fitting if phase.steps > 1 else 'leave ramp out'}",
        )


def _tokenizer(config: Config) -> Iterator[Impossible]:
    tokenizer = config.tokenizer
    if tokenizer.extend_from is not None and tokenizer.from_ is None and config.model.init_from is None:
        yield Impossible(
            ("tokenizer.extend_from", "tokenizer.from", "model.init_from"),
            f"tokenizer.extend_from: {tokenizer.extend_from} has no vocabulary to extend; set tokenizer.from or"
            " model.init_from",
        )


def _examples(config: Config) -> Iterator[Impossible]:
    masking = config.masking
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        yield Impossible(
            ("masking.mask_share", "masking.random_share"),
            f"masking.mask_share + masking.random_share: {masking.mask_share} + {masking.random_share} is above 1;"
            " set 0.8 and 0.1, as BERT does",
        )
    longest = Masking.model_fields["max_ngram"].default
    if masking.unit != "ngram" and masking.max_ngram != longest:
        yield Impossible(
            ("masking.max_ngram", "masking.unit"),
            f"masking.max_ngram: {masking.max_ngram} has no effect with masking.unit: {masking.unit}; set"
            f" masking.unit=ngram, or leave it at {longest}",
        )


def _heldout(config: Config) -> Iterator[Impossible]:
    heldout = config.corpus.heldout
    if heldout.min_documents > heldout.max_documents:
        yield Impossible(
            ("corpus.heldout.min_documents", "corpus.heldout.max_documents"),
            f"corpus.heldout.max_documents: {heldout.max_documents} is below min_documents {heldout.min_documents};"
            f" set {heldout.min_documents} or more",
        )


def _quality(config: Config) -> Iterator[Impossible]:
    corpus = config.corpus
    if corpus.max_letters is not None and corpus.min_letters > corpus.max_letters:
        yield Impossible(
            ("corpus.min_letters", "corpus.max_letters"),
            f"corpus.max_letters: {corpus.max_letters} is below corpus.min_letters {corpus.min_letters}, so no document"
            " would be kept",
        )
    usual = Corpus.model_fields["similarity"].default
    if corpus.similarity != usual and corpus.deduplicate != "near-duplicates":
        yield Impossible(
            ("corpus.similarity", "corpus.deduplicate"),
            f"corpus.similarity: {corpus.similarity} has no effect with corpus.deduplicate: {corpus.deduplicate}; set"
            f" corpus.deduplicate=near-duplicates, or leave it at {usual}",
        )


def _sources(config: Config) -> Iterator[Impossible]:
    if len(config.corpus.sources) > MAX_SOURCES:
        yield Impossible(
            ("corpus.sources",),
            f"corpus.sources: {len(config.corpus.sources)} sources, at most {MAX_SOURCES}; name a folder or a glob"
            " pattern in place of single files",
        )
    for group, sources in (("sources", config.corpus.sources), ("fallback", config.corpus.fallback)):
        yield from _weights(f"corpus.{group}", sources)
        seen: set[str] = set()
        for index, source in enumerate(sources):
            where = f"corpus.{group}.{index}"
            if source.name and source.name in seen:
                yield Impossible((f"{where}.name",), f"{where}.name: {source.name!r} names another source too")
            seen.add(source.name or "")
            if isinstance(source, FilesSource | HubSource):
                yield from _document_rule(where, source)
            elif isinstance(source, WikidumpSource):
                yield from _dump_place(where, source)


def _weights(where: str, sources: list[AnySource]) -> Iterator[Impossible]:
    without = [index for index, source in enumerate(sources) if source.weight is None]
    if 0 < len(without) < len(sources):
        yield Impossible(
            tuple(f"{where}.{index}.weight" for index in range(len(sources))),
            f"{where}.{without[0]}.weight: is required when another source has one; give each a weight, or none",
        )
    most = Source.model_fields["max_repeats"].default
    limited = [index for index, source in enumerate(sources) if source.max_repeats != most]
    if len(without) == len(sources) and limited:
        yield Impossible(
            (f"{where}.{limited[0]}.max_repeats",),
            f"{where}.{limited[0]}.max_repeats: has no effect without weights: each document comes once in an epoch;"
            " give every source a weight",
        )


def _document_rule(where: str, source: FilesSource | HubSource) -> Iterator[Impossible]:
    for rule, key in (("group", "group_column"), ("heading", "heading")):
        if source.documents == rule and getattr(source, key) is None:
            yield Impossible((f"{where}.{key}",), f"{where}.{key}: is required when documents is {rule}")
    if source.heading is not None:
        try:
            re.compile(source.heading)
        except (re.error, RecursionError, OverflowError) as error:
            shown = source.heading if len(source.heading) <= SHOWN else f"{source.heading[:SHOWN]}..."
            yield Impossible((f"{where}.heading",), f"{where}.heading: {shown!r} is not a regular expression: {error}")


def _dump_place(where: str, source: WikidumpSource) -> Iterator[Impossible]:
    if (source.path is None) == (source.url is None):
        yield Impossible((where,), f"{where}: a wikidump needs either path or url")
    elif source.url is not None and source.sha256 is None:
        yield Impossible((f"{where}.sha256",), f"{where}.sha256: is required beside url")

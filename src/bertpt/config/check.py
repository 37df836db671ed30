"""Combinations of settings that cannot work, found before any work."""

from __future__ import annotations

from bertpt.config.schema import Config, FilesSource, HubSource, WikidumpSource


def impossible(config: Config) -> list[str]:
    """One line for each combination that cannot work: keys, values, and what to set instead."""
    return [*_model(config), *_train(config), *_examples(config), *_sources(config)]


def _model(config: Config) -> list[str]:
    model = config.model
    faults = []
    if model.hidden_size % model.num_attention_heads:
        fitting = [n for n in range(1, model.hidden_size + 1) if model.hidden_size % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - model.num_attention_heads))
        faults.append(
            f"model.num_attention_heads: {model.num_attention_heads} does not divide model.hidden_size"
            f" {model.hidden_size}; the nearest that does is {nearest}"
        )
    if config.pairs.rule != "none" and model.type_vocab_size < 2:
        faults.append(f"model.type_vocab_size: {model.type_vocab_size}, pairs need 2 segments; set 2, or pairs.rule=none")
    return faults


def _train(config: Config) -> list[str]:
    faults = []
    train = config.train
    for index, phase in enumerate(train.phases):
        where = f"train.phases.{index}"
        if phase.length > config.model.max_position_embeddings:
            faults.append(
                f"{where}.length: {phase.length} is above model.max_position_embeddings"
                f" {config.model.max_position_embeddings}; set {config.model.max_position_embeddings} or less"
            )
        if phase.batch_size % phase.accumulate:
            faults.append(f"{where}.accumulate: {phase.accumulate} does not divide batch_size {phase.batch_size}")
    total = sum(phase.steps for phase in train.phases)
    if train.schedule.warmup_steps >= total:
        faults.append(
            f"train.schedule.warmup_steps: {train.schedule.warmup_steps} must be below the {total} steps of all phases;"
            f" {max(0, total // 10)} would be a tenth"
        )
    return faults


def _examples(config: Config) -> list[str]:
    faults = []
    masking = config.masking
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        faults.append(
            f"masking.mask_share + masking.random_share: {masking.mask_share} + {masking.random_share} is above 1"
        )
    return faults


def _sources(config: Config) -> list[str]:
    faults = []
    for group, sources in (("sources", config.corpus.sources), ("fallback", config.corpus.fallback)):
        for index, source in enumerate(sources):
            where = f"corpus.{group}.{index}"
            if isinstance(source, FilesSource | HubSource):
                for rule, key in (("group", "group_column"), ("heading", "heading")):
                    if source.documents == rule and getattr(source, key) is None:
                        faults.append(f"{where}.{key}: is required when documents is {rule}")
            if isinstance(source, WikidumpSource):
                if (source.path is None) == (source.url is None):
                    faults.append(f"{where}: a wikidump needs either path or url")
                elif source.url is not None and source.sha256 is None:
                    faults.append(f"{where}.sha256: is required beside url")
    return faults

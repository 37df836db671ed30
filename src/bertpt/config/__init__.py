"""Configuration: one YAML per experiment, checked before any work."""

from bertpt.config.finetune import FinetuneConfig, validate_finetune
from bertpt.config.load import (
    as_yaml,
    find_config,
    load_config,
    load_finetune,
    plain,
    shipped_configs,
    shipped_corpora,
    shipped_tasks,
)
from bertpt.config.schema import Config
from bertpt.config.validate import validate

__all__ = [
    "Config",
    "FinetuneConfig",
    "as_yaml",
    "find_config",
    "load_config",
    "load_finetune",
    "plain",
    "shipped_configs",
    "shipped_corpora",
    "shipped_tasks",
    "validate",
    "validate_finetune",
]

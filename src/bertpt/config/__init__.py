"""Configuration: one YAML per experiment, checked before any work."""

from bertpt.config.load import as_yaml, find_config, load_config, plain, shipped_configs, shipped_corpora
from bertpt.config.schema import Config
from bertpt.config.validate import validate

__all__ = [
    "Config",
    "as_yaml",
    "find_config",
    "load_config",
    "plain",
    "shipped_configs",
    "shipped_corpora",
    "validate",
]

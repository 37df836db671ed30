"""Configuration: one YAML per experiment, checked before any work."""

from bertpt.config.load import as_yaml, find_config, load_config, plain, shipped_configs, validate
from bertpt.config.schema import Config

__all__ = ["Config", "as_yaml", "find_config", "load_config", "plain", "shipped_configs", "validate"]

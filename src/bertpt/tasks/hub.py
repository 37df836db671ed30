"""Splits of a hub data set in the place of files: fetched before anything is read, files from then on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bertpt.config.finetune import FinetuneConfig
from bertpt.config.schema import HubSource
from bertpt.errors import RequestError
from bertpt.tasks.examples import places

C = TypeVar("C", bound=FinetuneConfig)


def with_files(config: C, say: Callable[[str], None]) -> C:
    """The configuration with files in the place of the splits that ``data.hub`` brings.

    A run keeps this one: evaluating it later needs no hub.

    Raises:
        RequestError: no such data set, configuration, revision or split; all splits' faults together.
        SourceUnreachable: the hub does not answer and the data set was not fetched before.
    """
    hub = getattr(config.data, "hub", None)
    if hub is None:
        return config
    from bertpt.data.corpus.hub_splits import fetch_split  # takes a second to import

    files: dict[str, str] = {}
    faults: list[str] = []
    for key, split in places(config).items():
        source = HubSource(
            kind="hub",
            dataset=hub.dataset,
            config=hub.config,
            revision=hub.revision,
            size=hub.size,
            split=split,
        )
        try:
            files[key] = str(fetch_split(source, Path(hub.keep), say))
        except RequestError as error:
            faults += [f"data.{key}: {line}" for line in error.faults]
    if faults:
        raise RequestError(list(dict.fromkeys(faults)))
    return config.model_copy(update={"data": config.data.model_copy(update={"hub": None, **files})})

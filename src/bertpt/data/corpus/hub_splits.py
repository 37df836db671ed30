"""Splits of a data set of the hub as Parquet files: fetched once, then plain files with a manifest.

Class labels, which ``datasets`` stores as numbers, become their names; -1, a hidden label, becomes null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertpt.config.schema import HubSource
from bertpt.data.corpus.sources import hub
from bertpt.data.corpus.sources.base import Reading
from bertpt.data.stage import existing, stage_key
from bertpt.errors import RequestError
from bertpt.files import check_hashes, staged_directory, write_manifest

STAGE = "hub split"
ROWS = "rows.parquet"
_BATCH = 10_000  # rows in memory


def fetch_split(source: HubSource, keep: Path, say: Callable[[str], None]) -> Path:
    """The Parquet file of ``source.split`` under ``keep``; made when it is not there.

    A folder in the place of a data set is read again when its files have changed.

    Raises:
        SourceUnreachable: the hub does not answer and the data set was not fetched before.
        RequestError: no such data set, configuration, revision or split, or the file here is damaged.
        BertptError: the data set's files are damaged.
    """
    reading = Reading(keep / "downloads", say=say)
    settings = source.model_dump(include={"config", "split", "revision"}) | {"dataset": Path(source.dataset).name}
    inputs = {"dataset": hub.fingerprint_inputs(source, reading)}
    key = stage_key(STAGE, settings, inputs)
    name = re.sub(r"[^\w.-]+", "-", f"{source.label}-{source.split}").strip("-")
    directory = keep / f"{name}-{key[:8]}"
    if (manifest := existing(directory, overwrite=False)) is not None:
        check_hashes(directory, manifest)
        return directory / ROWS
    found = hub.load(source, source.split, reading)
    if not isinstance(found, datasets.Dataset) or not len(found):
        raise RequestError(f"{source.dataset}: split {source.split!r} has no rows")
    hub.say_commit(source, found, reading)
    with staged_directory(directory) as aside:
        _write(found, aside / ROWS)
        counts = {"rows": len(found), "columns": found.column_names}
        write_manifest(aside, stage=STAGE, key=key, inputs=inputs, settings=settings, counts=counts)
    say(f"{source.dataset}, {source.split}: {len(found):,} rows in {directory / ROWS}")
    return directory / ROWS


def _write(found: Any, path: Path) -> None:
    writer: Any = None
    try:
        for batch in found.with_format("arrow").iter(_BATCH):
            table = _named(batch, found.features)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _named(table: pa.Table, features: Any) -> pa.Table:
    for number, column in enumerate(table.column_names):
        feature, values = features[column], table.column(column).combine_chunks()
        inner = getattr(feature, "feature", None)
        if isinstance(feature, datasets.ClassLabel):
            values = _names(values, feature)
        elif isinstance(inner, datasets.ClassLabel):
            offsets = pc.cumulative_sum(pc.fill_null(pc.list_value_length(values), 0))
            starts = pa.concat_arrays([pa.array([0], pa.int32()), offsets.cast(pa.int32())])
            values = pa.ListArray.from_arrays(starts, _names(values.flatten(), inner))
        table = table.set_column(number, pa.field(column, values.type), values)
    return table.replace_schema_metadata(None)


def _names(values: pa.Array, feature: Any) -> pa.Array:
    hidden = pc.less(values, 0)
    return pa.array(feature.names, pa.string()).take(pc.if_else(hidden, pa.scalar(None, values.type), values))

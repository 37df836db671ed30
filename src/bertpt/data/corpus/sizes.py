"""How much text a documents folder holds, from the footers of its Parquet files alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bertpt.data.stage import Split
from bertpt.errors import RequestError


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """Documents of one split, and their text in bytes (up to a few bytes for each document more)."""

    documents: int
    text_bytes: int


def corpus_size(directory: Path, split: Split) -> CorpusSize:
    """Add up the files of a split without reading their text.

    Raises:
        RequestError: a file is damaged.
    """
    documents = text_bytes = 0
    for path in sorted(directory.glob(f"{split}-[0-9]*.parquet")):
        try:
            footer = pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            raise RequestError(f"{path}: damaged ({error}); run `bertpt download --overwrite`") from error
        documents += footer.num_rows
        text_bytes += sum(_text_bytes(footer.row_group(index)) for index in range(footer.num_row_groups))
    return CorpusSize(documents, text_bytes)


def _text_bytes(group: pq.RowGroupMetaData) -> int:
    columns = (group.column(index) for index in range(group.num_columns))
    return sum(int(column.total_uncompressed_size) for column in columns if column.path_in_schema == "text")

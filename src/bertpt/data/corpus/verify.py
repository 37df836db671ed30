"""``bertpt download --verify``: the documents on disk beside their manifest, byte for byte."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertpt.config import Config
from bertpt.data.locate import documents_dir
from bertpt.errors import RequestError
from bertpt.files import MANIFEST, faulty_files, listed_files
from bertpt.progress import Progress, counted

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """Files that are what their manifest says."""

    directory: Path
    files: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"directory": str(self.directory)}

    def line(self) -> str:
        """For people."""
        return f"{self.directory}: {counted(self.files, 'files')}, {self.bytes:,} bytes, all as the manifest says"


def verify_documents(config: Config, *, progress: bool = True) -> Verified:
    """Compare size and SHA-256 of every file of the documents with the manifest; nothing is written.

    Raises:
        RequestError: there are no documents, their manifest cannot be read, or files are missing or damaged: each is
            named, then the command that makes the documents again.
    """
    directory = documents_dir(config)
    if not (directory / MANIFEST).is_file():
        raise RequestError(f"{directory}: no finished documents to verify; `bertpt download` makes them")
    listed = listed_files(directory)
    with Progress("verify", unit="files", total=len(listed), shown=progress) as shown:
        faults = list(faulty_files(directory, listed, tick=shown.add))
    if faults:
        more = [f"{counted(len(faults) - _SHOWN, 'more files')} like these"] if len(faults) > _SHOWN else []
        mend = f"{directory}: `bertpt download --overwrite` with the same configuration makes the documents again"
        raise RequestError([*faults[:_SHOWN], *more, mend])
    return Verified(directory, len(listed), sum(facts["bytes"] for facts in listed.values()))

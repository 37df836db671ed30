"""What a download would still bring: which files lie there already, and how large the rest is said to be."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bertpt.config.schema import AnySource, HubSource, WheelSource, WikidumpSource
from bertpt.files import fingerprint, sha256_file

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B\b", re.IGNORECASE)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def downloads_dir(data_dir: str | Path) -> Path:
    """Where fetched files are kept."""
    return Path(data_dir) / "downloads"


def cached_wheel(source: WheelSource, downloads: Path) -> Path | None:
    """A wheel of this package that lies there with the right hash."""
    project = re.split(r"[=<>!~\[; ]", source.package, maxsplit=1)[0]
    stem = re.sub(r"[-_.]+", "_", project).lower()
    for path in sorted(downloads.glob("*.whl")):
        if re.sub(r"[-_.]+", "_", path.name.partition("-")[0]).lower() == stem and sha256_file(path) == source.sha256:
            return path
    return None


def dump_place(url: str, downloads: Path) -> Path:
    """Where the file of ``url`` is kept; the address is part of the name, as many dumps share theirs."""
    base = unquote(urlsplit(url).path).rpartition("/")[2] or "dump"
    return downloads / f"{fingerprint(url)[:8]}-{base}"


def is_cached(source: AnySource, downloads: Path) -> bool:
    """Whether nothing of a source has to be downloaded; of the hub: whether a whole table of it lies there."""
    if isinstance(source, WheelSource):
        return cached_wheel(source, downloads) is not None
    if isinstance(source, WikidumpSource):
        return source.url is None or dump_place(source.url, downloads).is_file()
    if isinstance(source, HubSource) and not source.streaming:
        name = source.dataset.replace("/", "___").lower()
        tables = (downloads / "hub").glob(f"{name}/*/*/*/dataset_info.json")
        configs = {path.parents[2].name for path in tables}
        return bool(configs & {source.config} if source.config else configs)
    return not isinstance(source, HubSource)


def stated_bytes(source: AnySource) -> float:
    """The first size in a source's ``size``, e.g. 2.8e7 of ``28 MB``; 0 where none is said."""
    found = _SIZE.search(getattr(source, "size", None) or "")
    return float(found.group(1)) * _UNITS[found.group(2).lower()] if found else 0.0


def to_download(source: AnySource, downloads: Path) -> str | None:
    """The stated size of what has to be downloaded; ``None`` where nothing has to be, or none is stated."""
    size: str | None = getattr(source, "size", None)
    return size if size and not is_cached(source, downloads) else None

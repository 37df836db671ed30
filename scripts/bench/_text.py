"""Generated text that wears on tokenizers as English does, and the peak memory of a process with its children.

Word ranks follow a Zipf-Mandelbrot law whose exponent (1.35) and offset (5) were fitted to the demo corpus: 1.1 M
words of it hold 75,000 distinct ones, of this text 89,000. New words never end, so nothing that grows with their number
stays hidden. A word is its rank in syllables: frequent words are short, in the mean 5.9 bytes with what parts them.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

EXPONENT, OFFSET = 0.35, 5.0
_BLOCK = 200_000  # words made at a time
_KNOWN = 300_000  # words made once
_MAX_RANK = 2**40


class Words:
    """Words by rank."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        onsets = (
            "b",
            "br",
            "c",
            "ch",
            "d",
            "f",
            "j",
            "g",
            "l",
            "m",
            "n",
            "p",
            "pr",
            "qu",
            "r",
            "s",
            "sh",
            "st",
            "t",
            "th",
            "v",
            "w",
        )
        made = [
            onset + vowel + coda for onset in onsets for vowel in "aeiou" for coda in ("", "l", "n", "r", "s", "nd")
        ]
        self.syllables = sorted((str(s) for s in rng.permutation(made)[:60]), key=len)
        self.known = np.array([self.spell(rank) for rank in range(_KNOWN)], object)

    def spell(self, rank: int) -> str:
        """The word of that rank; no two are equal but by chance of their letters."""
        word = self.syllables[rank % 60]
        while rank := rank // 60:
            word += self.syllables[(rank - 1) % 60]
        return word

    def draw(self, rng: np.random.Generator, count: int) -> list[str]:
        """So many words of running text."""
        ranks = OFFSET * (rng.random(count) ** (-1 / EXPONENT) - 1)
        ranks = np.minimum(ranks, _MAX_RANK).astype(np.int64)
        words = self.known[np.minimum(ranks, _KNOWN - 1)]
        for place in np.flatnonzero(ranks >= _KNOWN).tolist():
            words[place] = self.spell(int(ranks[place]))
        return list(words)


def documents(size: int, seed: int = 0) -> Iterator[str]:
    """Documents of about ``size`` bytes in all: lines of a few sentences, 3 kB in the mean, some of them long."""
    rng, words = np.random.default_rng(seed), Words()
    made = 0
    lines: list[str] = []
    wanted = rng.lognormal(7.5, 1.0)
    while made < size:
        block, at = words.draw(rng, _BLOCK), 0
        lengths = rng.integers(4, 38, _BLOCK // 20)
        commas = rng.random(_BLOCK) < 0.06
        sentences = []
        for length in lengths.tolist():
            if at + length > _BLOCK:
                break
            part = [w + "," if c else w for w, c in zip(block[at : at + length - 1], commas[at:], strict=False)]
            sentences.append(" ".join([*part, block[at + length - 1] + "."]).capitalize())
            at += length
        for first in range(0, len(sentences), 5):
            lines.append(" ".join(sentences[first : first + 5]))
            made += len(lines[-1]) + 1
            wanted -= len(lines[-1]) + 1
            if wanted <= 0 or made >= size:
                yield "\n".join(lines)
                lines, wanted = [], rng.lognormal(7.5, 1.0)
            if made >= size:
                break


def write_text(path: Path, size: int, seed: int = 0) -> int:
    """One file, documents parted by blank lines; its bytes."""
    with path.open("w", encoding="utf-8") as file:
        for document in documents(size, seed):
            file.write(document + "\n\n")
    return path.stat().st_size


def _children(process: int) -> list[int]:
    found = [process]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _children(int(child))
    return found


def _memory(process: int, field: str) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        text = Path(f"/proc/{process}/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) * 1024
    return 0


def peak_of(command: list[str]) -> tuple[str, dict[str, int]]:
    """Run a command; its output, and the most memory (bytes, itself and its children together) at any moment.

    ``anonymous`` is what the processes hold themselves, ``resident`` adds pages of files, which the system takes back
    when it needs them. Looked at ten times a second; Linux alone, zeros elsewhere.
    """
    peak = {"anonymous": 0, "resident": 0}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        tree = _children(process.pid)
        for name, field in (("anonymous", "RssAnon"), ("resident", "VmRSS")):
            peak[name] = max(peak[name], sum(_memory(each, field) for each in tree))
        time.sleep(0.1)
    output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return output, peak

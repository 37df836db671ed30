"""Write constraints.txt: every version in the dependency closure of bertpt[dev], as installed now.

Run it in an environment whose tests pass: ``.venv/bin/python scripts/constraints.py > constraints.txt``.
"""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement

# Part of every environment, never ours to pin.
SKIPPED = {"bertpt", "pip", "setuptools", "wheel"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(name: str, extras: set[str], seen: dict[str, str]) -> None:
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        key = normal(requirement.name)
        if key in seen or key in SKIPPED:
            continue
        # A local tag (torch's +cpu) names one build; the version is what was tested.
        seen[key] = metadata.version(requirement.name).partition("+")[0]
        closure(requirement.name, set(requirement.extras), seen)


def main() -> None:
    seen: dict[str, str] = {}
    closure("bertpt", {"dev"}, seen)
    print("# The versions that bertpt is tested with, for: pip install -c constraints.txt")
    print("# Made by scripts/constraints.py.")
    for name in sorted(seen):
        print(f"{name}=={seen[name]}")


if __name__ == "__main__":
    main()

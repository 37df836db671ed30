"""Run the benchmarks of this folder: all of them, or those named."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    known = {path.stem: path for path in sorted(FOLDER.glob("[!_]*.py"))}
    names = sys.argv[1:] or list(known)
    if unknown := [name for name in names if name not in known]:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    # One process each, one after the other: they must not share caches, threads or memory.
    return max((subprocess.run([sys.executable, known[name]], check=False).returncode for name in names), default=0)


if __name__ == "__main__":
    sys.exit(main())

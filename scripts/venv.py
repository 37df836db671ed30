"""Make .venv, or make it again when it was moved, is broken, or when what is to be installed has changed.

Run by the Makefile with any Python; a stamp inside .venv says for which folder and requirements it was made.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
if sys.version_info < OLDEST:
    version = ".".join(str(part) for part in sys.version_info[:3])
    sys.exit(f"bertpt needs Python >= 3.11; {sys.executable} is {version}. Name a newer one: make PYTHON=python3.12")

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "made-for.json"
PROBE = "import json, sys, pip; print(json.dumps([sys.prefix, list(sys.version_info[:2])]))"


def wanted() -> dict[str, str]:
    files = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        files.update((ROOT / name).read_bytes())
    return {"folder": str(ROOT), "requirements": files.hexdigest()}


def stamped() -> dict[str, str]:
    try:
        return dict(json.loads(STAMP.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def usable(this_python: bool) -> bool:
    """Whether .venv runs, belongs to this folder, and is of a version that will do."""
    if stamped().get("folder", str(ROOT)) != str(ROOT):
        return False
    try:
        answer = subprocess.run([PYTHON, "-c", PROBE], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    prefix, version = json.loads(answer)
    fits = tuple(version) == sys.version_info[:2] if this_python else tuple(version) >= OLDEST
    return fits and Path(prefix).resolve() == VENV.resolve()


def make() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"{sys.executable} cannot make environments; on Debian and Ubuntu: apt-get install python3-venv")
    if VENV.is_symlink():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)


def install() -> None:
    version = ".".join(str(part) for part in sys.version_info[:2])
    print(f"installing into .venv (Python {version}; 1 GB or, with CUDA, several; a few minutes)", flush=True)
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # An exported PYTHONPATH would hide packages that are not installed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([*command, "-c", "constraints.txt", "-e", ".[dev]"], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        sys.exit("pip could not install bertpt (its message is above); mend the cause and run the same command again")


def main() -> None:
    if STAMP.is_file() and stamped() == wanted() and usable("--this-python" in sys.argv):
        return
    if not usable("--this-python" in sys.argv):
        make()
    install()
    STAMP.write_text(json.dumps(wanted(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

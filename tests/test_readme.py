"""Every command and configuration in README.md and docs/ is run, or carries a stated skip.

An HTML comment before a block says what is to be done with it:
``skip: reason``; ``dry-run: reason`` (run with --dry-run); ``slow: reason`` (run by make test-slow); ``file: NAME``
(content of a file that later blocks use).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from stage_helpers import wordy_documents
from train_helpers import Tiny, quiet

from bertpt.config import load_config, shipped_configs
from bertpt.train.plan import plan_run
from bertpt.train.pretrain import pretrain

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"(?:<!-- (\w[\w-]*): (.*?) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


class Block(NamedTuple):
    page: str
    directive: str
    argument: str
    language: str
    text: str


BLOCKS = [
    Block(page.name, match[1] or "", match[2] or "", match[3], match[4])
    for page in PAGES
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))
]
COMMANDS = [block for block in BLOCKS if block.language in ("bash", "sh", "console", "python")]


def test_the_readme_has_commands_and_each_directive_is_known() -> None:
    assert sum(block.page == "README.md" for block in COMMANDS) >= 5
    assert {block.directive for block in BLOCKS} <= {"", "skip", "dry-run", "slow", "file"}
    assert all(block.argument.strip() for block in BLOCKS if block.directive)


def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert not re.findall(r"\b(?:TODO|TBD|FIXME|DEMO_\w+)\b", page.read_text(encoding="utf-8")), page.name


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.fixture(scope="module")
def newcomer(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder as a newcomer's after the demo: runs of two names, texts, the files of the pages; and an environment."""
    home = tmp_path_factory.mktemp("newcomer")
    shutil.copytree(tiny.folder / "data", home / "data")
    (home / "configs").symlink_to(ROOT / "configs")
    pretrain(tiny.config(home / "runs", name="demo"), say=quiet)
    shutil.copytree(home / "runs" / "demo", home / "runs" / "my-language")  # of docs/getting-started.md
    (home / "my-texts").mkdir()
    for number, text in enumerate(wordy_documents(30)):
        (home / "my-texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    for block in BLOCKS:
        if block.directive == "file":
            (home / block.argument).write_text(block.text, encoding="utf-8")
    shim = home / "bin" / "bertpt"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bertpt "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    return home, os.environ | {"PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}


def _name(block: Block) -> str:
    return f"{block.page}:{block.text.split(chr(10))[0][:60]}"


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, marks=[pytest.mark.slow] if b.directive == "slow" else [], id=_name(b)) for b in COMMANDS],
)
def test_the_block_runs_as_printed(block: Block, newcomer: tuple[Path, dict[str, str]]) -> None:
    if block.directive == "skip":
        pytest.skip(block.argument)
    home, environment = newcomer
    text = block.text
    if block.directive == "dry-run":
        text = re.sub(r"^(bertpt .*?)(\s+#.*)?$", r"\1 --dry-run", text, flags=re.MULTILINE)
    command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_page_of_settings_is_what_the_program_says() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "settings.py"), "--check"], check=False)
    assert done.returncode == 0, "python scripts/settings.py writes docs/settings.md anew"


def test_every_setting_and_command_is_on_that_page() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for key in (
        "train.phases.N.accumulate",
        "corpus.heldout.near_duplicates",
        "tokenizer.from",
        "head.crf",
        "summary.k",
    ):
        assert f"| `{key}` |" in page
    for command in ("bertpt pretrain", "bertpt inspect pairs", "bertpt predict qa", "bertpt config schema"):
        assert f"### {command}\n" in page


def test_the_costs_of_the_recipes_are_those_that_the_plan_reckons() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| `[\w-]+` \| \d+x\d+ ", line)]
    assert {row[0].strip("`") for row in rows} == set(shipped_configs())
    for name, shape, _, _, _, flops, *hours in rows:
        config = load_config(name.strip("`"), ["data_dir=nowhere"])
        assert shape == f"{config.model.num_hidden_layers}x{config.model.hidden_size}"
        plan = plan_run(config, gpu="A100", mfu=0.4, say=quiet)
        total = sum(phase.steps * phase.flops for phase in plan.phases)
        assert flops == f"{total:.2e}".replace("e+", "e"), name
        if hours[0].endswith(" h"):
            assert float(hours[0].removesuffix(" h")) == pytest.approx(plan.hours, rel=0.06), name
            assert float(hours[1].removesuffix(" h")) == pytest.approx(plan.hours * 312 / 989, rel=0.2), name

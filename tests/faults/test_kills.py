"""Every stage struck at random moments: what has its final name is whole, and the end is as if nothing had been."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from server_helpers import Server, started
from task_helpers import encoder, plain_task
from train_helpers import MEASURED, Tiny, write_config

from bertpt.files import check_hashes, read_manifest
from bertpt.train.checkpoints.checkpoint import checkpoints, open_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have loaded torch")
Many = Callable[[int, int], int]
Count = Callable[[str, int], None]

TIMES = re.compile(rf'"(?:seconds|waited|spent|{"|".join(sorted(MEASURED))})": [0-9.e+-]+')
# Done, stopped after saving, killed; or struck before or after all work, when nobody answers signals.
ENDS = {0, 3, *(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1))}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("server")) as server:
        yield server


# --- stages ---------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """A command over a folder.

    Attributes:
        command: its arguments, after the folder was set up.
        made: what it makes in the folder, by patterns.
        before: commands that make what it needs.
    """

    command: list[str]
    made: list[str]
    before: list[list[str]] = field(default_factory=list)


C = ["--config", "c.yaml", "--quiet"]
DOWNLOAD, TOKENIZER, PREPARE = (["download", *C], ["train-tokenizer", *C], ["prepare", *C])
PRETRAIN = ["pretrain", *C]
DATA = [DOWNLOAD, TOKENIZER, PREPARE]
RUN = "runs/tiny-run"
STAGES = {
    "download": Stage(DOWNLOAD, ["data/c/documents/*"]),
    "train-tokenizer": Stage(TOKENIZER, ["data/c/tokenizer-*/*"], DATA[:1]),
    "prepare": Stage(PREPARE, ["data/c/tokens-*/*"], DATA[:2]),
    "pretrain": Stage(PRETRAIN, [f"{RUN}/checkpoints/step-00000020/*", f"{RUN}/best/*", f"{RUN}/metrics.jsonl"], DATA),
    "run": Stage(["run", *C], ["data/c/*/*", f"{RUN}/checkpoints/step-00000020/*", f"{RUN}/summary.json"]),
    "eval": Stage(["eval", RUN, "--quiet"], [f"{RUN}/eval.json"], [*DATA, PRETRAIN]),
    "export": Stage(["export", "hf", RUN, "out", "--quiet", "--overwrite"], ["out/*"], [*DATA, PRETRAIN]),
    "import": Stage(
        ["import", "encoder-BertForPreTraining", "in", "--quiet", "--overwrite"], ["in/*", "in/tokenizer/*"]
    ),
    "finetune": Stage(
        ["finetune", "classification", "--config", "t.yaml", "--quiet"],
        ["runs/t/best/*", "runs/t/eval.json", "runs/t/predictions-*.jsonl", "runs/t/metrics.jsonl"],
    ),
}
STRIKES = {  # full, by default
    "download": (34, 4),
    "train-tokenizer": (30, 3),
    "prepare": (34, 4),
    "pretrain": (70, 8),
    "run": (30, 3),
    "eval": (16, 2),
    "export": (12, 1),
    "import": (12, 1),
    "finetune": (30, 3),
}


@pytest.fixture(scope="module")
def fresh(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory, server: Server) -> Callable[[Path, Stage], None]:
    """Sets a folder up for a stage. Paths in it are relative: results do not depend on where it lies."""
    template = tmp_path_factory.mktemp("template")
    shutil.copytree(tiny.folder / "text", template / "text")
    train = {"eval_every": 5, "save_every": 3, "keep": 2}
    value = Tiny(Path()).plain(Path("runs"), train=train)
    write_config(template / "c.yaml", value)
    encoder(template)
    task = plain_task(template, train={"epochs": 3, "save_every": 2})
    text = json.dumps(task).replace(str(template) + "/", "")
    write_config(template / "t.yaml", json.loads(text))
    made: dict[str, Path] = {}

    def copy(folder: Path, stage: Stage) -> None:
        key = " ".join(map(str, stage.before))
        if key not in made:
            place = tmp_path_factory.mktemp("before") / "x"
            shutil.copytree(template, place)
            for command in stage.before:
                server.finish(place, command)
            made[key] = place
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made[key], folder)

    return copy


def result(folder: Path, stage: Stage) -> dict[str, str]:
    """A hash of each file that a stage made, less what measures time."""
    found = {}
    for pattern in stage.made:
        for path in sorted(path for path in folder.glob(pattern) if path.is_file()):
            content = path.read_bytes()
            if path.name in ("metrics.jsonl", "state.json", "manifest.json", "README.md"):
                content = TIMES.sub("", content.decode()).encode()
            if path.name == "manifest.json":  # the state's hash has the seconds in it
                value = json.loads(content)
                value["files"].pop("state.json", None)
                content = json.dumps([value["stage"], value["key"], value["files"]]).encode()
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    assert found
    return found


def assert_whole(folder: Path) -> None:
    """Whatever has its final name is whole."""
    for place in [*folder.glob("data/c/[!.]*"), *folder.glob("out"), *folder.glob("in"), *folder.glob("runs/*/best")]:
        manifest = read_manifest(place)
        assert manifest is not None or place.name == "out", place
        if manifest is not None:
            check_hashes(place, manifest)
    for run in folder.glob("runs/[!.]*"):
        assert (run / "config.yaml").is_file() or (run / "task.yaml").is_file()
        for _, path in checkpoints(run):
            open_checkpoint(path)


def leftovers(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".*") if path.suffix in (".tmp", ".old")]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_is_killed_at_any_moment_comes_to_the_same_end(
    name: str, server: Server, fresh: Callable[[Path, Stage], None], tmp_path: Path, many: Many, count: Count
) -> None:
    stage, draw, folder = STAGES[name], random.Random(name), tmp_path / "w"
    fresh(folder, stage)
    seconds = server.finish(folder, stage.command)
    wanted = result(folder, stage)
    left, kills, stops = many(*STRIKES[name]), 0, 0
    while left:
        fresh(folder, stage)
        for _ in range(draw.randint(1, 4)):  # so often in one place before it may end
            # Most are killed, some asked to stop.
            number = draw.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGUSR1])
            answer = server.run(folder, stage.command, delay=draw.random() * seconds, signal=number)
            assert answer["code"] in ENDS, (answer, server.said())
            assert_whole(folder)
            if answer["code"] == -signal.SIGKILL:
                kills += 1
                left = max(0, left - 1)
            elif answer["code"] == 3:
                stops += 1
        server.finish(folder, stage.command)
        assert result(folder, stage) == wanted
        assert_whole(folder)
        assert leftovers(folder) == []
    count("processes killed (SIGKILL)", kills)
    count("processes asked to stop (SIGTERM, SIGUSR1)", stops)
    assert kills >= many(*STRIKES[name])


def test_a_rank_that_dies_at_any_moment_ends_all_and_they_come_to_the_same_end(
    server: Server, fresh: Callable[[Path, Stage], None], tmp_path: Path, many: Many, count: Count
) -> None:
    stage, draw, folder = STAGES["pretrain"], random.Random("ranks"), tmp_path / "w"
    fresh(folder, stage)
    seconds = server.finish(folder, stage.command, ranks=2)
    wanted = result(folder, stage)
    left, kills = many(30, 3), 0
    while left:
        fresh(folder, stage)
        for _ in range(draw.randint(1, 3)):
            rank = draw.randrange(2)
            answer = server.run(folder, stage.command, ranks=2, rank=rank, delay=draw.random() * seconds)
            said = [line for line in server.said().splitlines() if line.startswith("bertpt: ")]
            # The other one has met a closed connection, was asked to stop by the launcher, or had done all.
            assert answer["codes"][1 - rank] in (0, 1, 3, -signal.SIGTERM), (answer, rank, server.said())
            assert len(said) <= 1, (answer, rank, said)
            if answer["codes"][1 - rank] == 1:
                assert "another process of this training has ended" in said[0]
            assert_whole(folder)
            if answer["codes"][rank] == -signal.SIGKILL:
                kills += 1
                left = max(0, left - 1)
        server.finish(folder, stage.command, ranks=2)
        assert result(folder, stage) == wanted
        assert leftovers(folder) == []
    count("ranks killed (SIGKILL)", kills)
    assert kills >= many(30, 3)


# --- full disks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STAGES)
def test_a_disk_that_takes_no_more_is_one_line_and_costs_nothing(
    name: str, server: Server, fresh: Callable[[Path, Stage], None], tmp_path: Path, many: Many, count: Count
) -> None:
    stage, draw, folder = STAGES[name], random.Random(name), tmp_path / "w"
    fresh(folder, stage)
    server.finish(folder, stage.command)
    wanted = result(folder, stage)
    sizes = [path.stat().st_size for pattern in stage.made for path in folder.glob(pattern) if path.is_file()]
    refused = 0
    for _ in range(many(12, 2)):
        fresh(folder, stage)
        # What it says has to fit as well.
        answer = server.run(folder, stage.command, file_limit=draw.randint(400, max(401, *sizes)))
        said = server.said()
        assert answer["code"] in (0, 1), said
        if answer["code"] == 1:
            refused += 1
            assert "Traceback" not in said
            lines = [line for line in said.splitlines() if line.startswith("bertpt: ")]
            assert len(lines) == 1, said
            assert "cannot write" in lines[0] or "File too large" in lines[0], said
        assert_whole(folder)
        server.finish(folder, stage.command)
        assert result(folder, stage) == wanted
        assert leftovers(folder) == []
    count("writes refused by a full disk (a limit on file sizes)", refused)

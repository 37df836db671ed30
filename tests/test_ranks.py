"""Several processes that train together: the same result as one, one that speaks, and an end for all."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from server_helpers import Server, started
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from train_helpers import MEASURED, Tiny, write_config

from bertpt.batch import Batch
from bertpt.config.schema import Optimizer
from bertpt.data.locate import finished_store
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import RequestError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train.pretrain import PreTraining, pretraining_counts
from bertpt.train.ranks import Ranks
from bertpt.train.rundir import Run
from bertpt.train.updates.cuts import share
from bertpt.train.updates.optim import build_optimizer, own_part
from bertpt.world import World, of_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have loaded torch")

UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LAST = "checkpoints/step-00000006"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    modules = ("bertpt.interop.continuing", "tensorboard.compat.proto.event_pb2", "torch.distributed.optim")
    with started(tmp_path_factory.mktemp("server"), *modules) as server:
        yield server


def plain(tiny: Tiny, runs: Path, name: str, accumulate: int = 1, **sections: Any) -> dict[str, Any]:
    """6 updates of 24 rows in two phases, evaluated and saved every 2."""
    phases = [{"length": 32, "steps": 4}, {"length": 48, "steps": 2}]
    train = {
        "phases": [phase | {"batch_size": 24, "accumulate": accumulate} for phase in phases],
        "eval_every": 2,
        "save_every": 2,
        "schedule": {"warmup_steps": 1},
    }
    return tiny.plain(runs, name=name, train=train | sections.pop("train", {}), **sections)


Train = Callable[..., Path]


@pytest.fixture
def train(tiny: Tiny, tmp_path: Path, server: Server) -> Train:
    """Trains to the end in so many processes, and gives the run's directory."""

    def train(ranks: int, name: str, accumulate: int = 1, **sections: Any) -> Path:
        config = write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, name, accumulate, **sections))
        server.finish(tmp_path, ["pretrain", "--config", str(config)], ranks=ranks if ranks > 1 else 0)
        return tmp_path / name

    return train


def tensors(run: Path) -> dict[str, Tensor]:
    """Weights and moments at the end."""
    files = [run / LAST / "model.safetensors", run / LAST / "optimizer.safetensors"]
    return {f"{path.stem}:{name}": tensor for path in files for name, tensor in load_file(path).items()}


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in MEASURED} for line in lines]


def assert_close(run: Path, wanted: Path) -> None:
    """Equal but for rounding; each line of the log stands there once."""
    found, expected = tensors(run), tensors(wanted)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=2e-6, msg=name)
    assert len(metrics(run)) == 6 + 3
    for line, other in zip(metrics(run), metrics(wanted), strict=True):
        assert line.pop("kind") == other.pop("kind")
        assert line == pytest.approx(other, rel=1e-5, abs=1e-6)


# --- the same result ------------------------------------------------------------------------------------------------


def test_any_number_of_processes_comes_to_the_result_of_one(train: Train) -> None:
    one = train(1, "one", 4, model=UNDROPPED)
    for ranks, accumulate in ((2, 2), (4, 1), (3, 2)):
        assert_close(train(ranks, f"r{ranks}", accumulate, model=UNDROPPED), one)
    random = load_file(one.with_name("r3") / LAST / "random.safetensors")
    assert sorted(random) == ["cpu", "cpu/1", "cpu/2"]


def test_a_batch_that_grows_is_dealt_out_too(train: Train) -> None:
    phases = [
        {"length": 32, "steps": 4, "batch_size": 24, "accumulate": 2, "ramp": {"batch_size": 6, "steps": 3}},
        {"length": 48, "steps": 2, "batch_size": 24},
    ]
    schedule = {"over": "tokens", "warmup_steps": None, "warmup_ratio": 0.1}
    runs = [train(n, f"n{n}", model=UNDROPPED, train={"phases": phases, "schedule": schedule}) for n in (1, 3)]
    assert_close(runs[1], runs[0])


def test_a_sharded_optimizer_comes_to_the_same_result_and_can_be_gone_on_with_by_one_process(
    tiny: Tiny, train: Train, server: Server, tmp_path: Path
) -> None:
    one, shard = train(1, "one", 2, model=UNDROPPED), {"shard_optimizer": True}
    run = train(2, "sharded", model=UNDROPPED, train=shard)
    assert_close(run, one)
    shutil.rmtree(run / LAST)
    write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, "sharded", model=UNDROPPED, train=shard))
    server.finish(tmp_path, ["pretrain", "--config", "c.yaml"])
    assert "2 processes before, 1 now: the same batches, dropout draws anew" in server.said()
    assert_close(run, one)
    shutil.rmtree(run / LAST)
    server.finish(tmp_path, ["pretrain", "--config", "c.yaml"], ranks=2)  # moments of one process to their owners
    assert_close(run, one)


def test_an_optimizer_with_groups_of_its_own_is_sharded_as_well(train: Train) -> None:
    lamb = {"optimizer": {"kind": "lamb", "lr": 1e-3}}
    one = train(1, "one", 2, model=UNDROPPED, train=lamb)
    assert_close(train(2, "sharded", model=UNDROPPED, train=lamb | {"shard_optimizer": True}), one)


def test_each_process_of_a_sharded_optimizer_keeps_the_moments_of_its_part_alone() -> None:
    parts = []
    for rank in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, at loading
            dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
            try:
                torch.manual_seed(0)
                model = BertForPreTraining(model_helpers.small(), 200)
                optimizer = own_part(build_optimizer(model, Optimizer(), sharded=True))
            finally:
                dist.destroy_process_group()
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        parts.append({names[id(one)]: one.numel() for group in optimizer.param_groups for one in group["params"]})
    assert sorted(name for part in parts for name in part) == sorted(names.values())
    whole = sum(sum(part.values()) for part in parts)
    assert max(sum(part.values()) for part in parts) < whole / 2


def test_the_shares_of_the_processes_are_the_rows_of_one_in_order(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path, train={"workers": 0})
    store = TokenStore.open(finished_store(config))

    def updates(size: int, rank: int, done: int = 0) -> list[list[Batch]]:
        run, ranks = Run(tmp_path, config, {}), Ranks(World(size, rank, rank))
        work = PreTraining(run, store, torch.device("cpu"), "fp32", ranks=ranks)
        return [list(batches) for batches in work.updates(done)]

    whole = updates(1, 0)
    for size in (2, 4):
        parts = [updates(size, rank) for rank in range(size)]
        assert {len(part) for part in parts} == {len(whole)} == {20}
        masks = {tuple(pretraining_counts(part[step][0])["mlm"] for part in parts) for step in range(20)}
        assert any(len(set(counts)) > 1 for counts in masks)  # else a mean of means would do
        for step, batches in enumerate(whole):
            assert {len(part[step]) for part in parts} == {2}
            for micro, batch in enumerate(batches):
                dealt = [part[step][micro] for part in parts]
                assert torch.equal(torch.cat([piece.input_ids for piece in dealt]), batch.input_ids)
                labels = [piece.masked_labels for piece in dealt if piece.masked_labels is not None]
                assert batch.masked_labels is not None
                assert torch.equal(torch.cat(labels), batch.masked_labels)
        resumed = updates(size, size - 1, done=13)
        assert torch.equal(resumed[0][1].input_ids, parts[-1][13][1].input_ids)


# --- stops ----------------------------------------------------------------------------------------------------------


def told(server: Server) -> list[str]:
    """The lines that faults and stops leave."""
    return [line for line in server.said().splitlines() if line.startswith("bertpt: ")]


def test_a_run_that_was_struck_again_and_again_is_the_one_that_was_not(
    tiny: Tiny, train: Train, server: Server, tmp_path: Path
) -> None:
    """Dropout draws from a stream of its own in each process; two of them add up in either order to the same bits."""
    wanted = train(2, "whole", 2)
    random = load_file(wanted / LAST / "random.safetensors")
    assert not torch.equal(random["cpu"], random["cpu/1"])
    write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, "struck", 2))
    run = tmp_path / "struck"
    command = ["pretrain", "--config", "c.yaml"]

    answer = server.run(tmp_path, command, ranks=2, rank=1, update=4)
    assert answer["codes"] == [1, -signal.SIGKILL]
    assert len(told(server)) == 1
    assert "another process of this training has ended" in told(server)[0]

    answer = server.run(tmp_path, command, ranks=2, rank=1, update=1, signal=signal.SIGTERM)  # one alone is asked
    assert answer["codes"] == [3, 3]
    assert len(told(server)) == 1
    assert "stopped by SIGTERM after update 3; saved" in told(server)[0]
    assert server.said().count("going on from") == 1

    server.finish(tmp_path, command, ranks=2)
    assert str(run) in server.said().splitlines()
    found, expected = tensors(run), tensors(wanted)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    after = load_file(run / LAST / "random.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in random.items())
    assert metrics(run) == metrics(wanted)


def test_numbers_gone_bad_in_several_processes_are_one_line(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    bad = {"optimizer": {"lr": 1e30}, "max_skips": 2, "eval_every": 0, "save_every": 100}
    write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, "bad", train=bad))
    assert server.run(tmp_path, ["pretrain", "--config", "c.yaml"], ranks=2)["codes"] == [1, 1]
    assert len(told(server)) == 1
    assert "not finite 2 times in a row (first in the output of bert." in told(server)[0]


# --- refusals -------------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_said_once_and_ends_all(tiny: Tiny, train: Train, server: Server, tmp_path: Path) -> None:
    train(2, "x", train={"phases": [{"length": 32, "steps": 2, "batch_size": 24}], "eval_every": 0})
    write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, "x"))
    base = ["pretrain", "--config", "c.yaml"]
    for command, line in (
        ([*base, "--set", "train.seeed=1"], "train.seeed: unknown key; did you mean seed?"),
        ([*base, "--set", "corpus.name=none"], "not there yet"),
        ([*base, "--set", "train.phases.1.batch_size=25"], "train.phases.1.batch_size: 25 rows cannot be dealt out"),
        ([*base, "--stop-after", "soon"], "--stop-after: soon: a time such as 3h50m"),
        ([*base, "--dry-run"], "--dry-run: works in one process"),
        (["eval", "x"], "bertpt eval: works in one process, and WORLD_SIZE is 2"),
    ):
        codes = server.run(tmp_path, command, ranks=2)["codes"]
        # The other is asked to stop by the launcher soon after the first has ended, and may not have come so far.
        assert codes in ([2, 2], [2, 3], [2, -signal.SIGTERM]), server.said()
        assert len(told(server)) == 1, server.said()
        assert line in told(server)[0]
    assert server.run(tmp_path, base, ranks=2)["codes"] == [2, 2]
    assert [line for line in told(server) if "another configuration" in line] == told(server)[:1]
    assert len(told(server)) == len(set(told(server))) > 1  # one line for each key that differs


def test_what_is_wrong_with_one_process_alone_is_its_own_line(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, "x"))
    command = ["pretrain", "--config", "c.yaml"]
    answer = server.run(tmp_path, command, ranks=2, rank=1, more=["--set", "train.steps=1"])
    assert answer["codes"] == [2, 2]
    assert len(told(server)) == 1
    assert "train.steps: unknown key" in told(server)[0]


@pytest.mark.parametrize(
    ("values", "size", "advice"),
    [
        ((32, 2), 3, "set p.batch_size=30 or 36, or start 2 processes"),
        ((32, 16), 4, "set p.accumulate=8"),
        ((24, 5), 2, "set p.accumulate=4"),
        ((7, 1), 2, "set p.batch_size=6 or 8, or start 1 process"),
        ((3, 1), 8, "set p.batch_size=8, or start 3 processes"),
    ],
)
def test_a_batch_that_cannot_be_dealt_out_is_refused_with_what_would_do(
    values: tuple[int, int], size: int, advice: str
) -> None:
    with pytest.raises(RequestError) as caught:
        share("p", *values, size)
    assert str(caught.value).endswith(f"; {advice}")


def test_a_share_is_the_rows_of_one_micro_batch() -> None:
    assert [share("p", 24, 2, size) for size in (1, 2, 3, 4, 12)] == [12, 6, 4, 3, 1]


PLACE = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_the_place_of_a_process_is_read_from_the_environment() -> None:
    assert of_environment(PLACE) == World(4, 3, 1)
    for alone in ({}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1"}, PLACE | {"WORLD_SIZE": "1"}, {"RANK": "3"}):
        assert of_environment(alone) == World(1, 0, 0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"RANK": ""}, "WORLD_SIZE is 4 and RANK not set"),
        ({"LOCAL_RANK": "", "MASTER_PORT": ""}, "LOCAL_RANK, MASTER_PORT not set"),
        ({"RANK": "4"}, "RANK: 4 is not below WORLD_SIZE 4"),
        ({"RANK": "-1"}, "RANK: '-1' is no number"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE: 'four' is no number"),
        ({"MASTER_PORT": "port"}, "MASTER_PORT: 'port' is no number"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT: 99999 is no port"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(change: dict[str, str], line: str) -> None:
    with pytest.raises(RequestError, match=line):
        of_environment(PLACE | change)


# --- torchrun -------------------------------------------------------------------------------------------------------


def test_torchrun_starts_it(tiny: Tiny, tmp_path: Path) -> None:
    short = {"phases": [{"length": 32, "steps": 2, "batch_size": 24}], "eval_every": 0}
    config = write_config(tmp_path / "c.yaml", plain(tiny, tmp_path, "x", train=short))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "bertpt", "pretrain", "--config", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'x'}\n"
    assert done.stderr.count("in 2 processes") == 1
    assert [line["step"] for line in metrics(tmp_path / "x")] == [1, 2, 2]


def test_all_processes_end_with_the_same_update_when_a_budget_is_over(train: Train) -> None:
    steps = {"phases": [{"length": 32, "steps": 100_000, "batch_size": 24}], "budget": "1s", "save_every": 10**6}
    run = train(2, "budget", train=steps | {"schedule": {"warmup_steps": None}, "eval_every": 0})
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    shares = [line["budget_share"] for line in log if line["kind"] == "train"]
    assert shares[-1] >= 1 > max(shares[:-1], default=0)

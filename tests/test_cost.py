"""Cost of training: operations beside torch's own counter, parameters, `bertpt plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from train_helpers import Tiny

from bertpt.batch import Batch
from bertpt.cli.main import run as command
from bertpt.config import load_config
from bertpt.config.schema import Model
from bertpt.data.locate import finished_store
from bertpt.data.rows.loader import BatchStream
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import RequestError
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train import plan
from bertpt.train.cost import find_device, parameters_by_part, training_flops
from bertpt.train.plan import _duration, plan_run
from bertpt.train.pretrain import pretraining_objective

SHAPE = Model(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=80)


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SECONDS", 0.0)


def silent(_: str) -> None:
    """Say nothing."""


@pytest.mark.parametrize("pairs", [True, False])
def test_operations_are_those_that_torch_counts(pairs: bool) -> None:
    """Rows of one length, whose attention is exact."""
    rows, length, masked, vocab = 4, 16, 9, 50
    labels = {"next_sentence_label": torch.tensor([0, 1, 0, 1])} if pairs else {}
    batch = Batch.from_lengths(
        torch.randint(vocab, (rows * length,)),
        torch.zeros(rows * length, dtype=torch.long),
        torch.full((rows,), length),
        masked_positions=torch.arange(masked),
        masked_labels=torch.arange(masked),
        **labels,  # type: ignore[arg-type]
    )
    model = BertForPreTraining(SHAPE, vocab, nsp=pairs).eval()
    # The counter does not know the fused attention of CPUs.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        pretraining_objective(model, batch)
    expected = training_flops(SHAPE, vocab, rows=rows, tokens=rows * length, predictions=masked, pairs=pairs)
    assert expected == 3 * counter.get_total_flops()


def test_every_parameter_is_counted_once() -> None:
    model = BertForPreTraining(SHAPE, 50)
    assert sum(parameters_by_part(model).values()) == sum(p.numel() for p in model.parameters())
    assert parameters_by_part(model)["token embedding"] == 50 * 32


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("GeForce GTX 1080", None),
    ],
)
def test_devices_are_known_by_the_names_that_drivers_give(name: str, known: str | None) -> None:
    found = find_device(name)
    assert (found and found[0]) == known


def test_a_plan_of_this_machine_measures_every_phase(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path)
    plan = plan_run(config, say=silent)
    assert [phase.steps for phase in plan.phases] == [phase.steps for phase in config.train.phases]
    for phase in plan.phases:
        assert phase.seconds > 0
        assert phase.activation_bytes is not None
        assert phase.fitting_rows is not None
        assert phase.fitting_rows > phase.micro_batch
    for phase, settings in zip(plan.phases, config.train.phases, strict=True):
        store = TokenStore.open(finished_store(config))
        stream = BatchStream.create(
            store,
            "train",
            pairs=config.pairs,
            masking=config.masking,
            length=phase.length,
            batch_size=1,
            seed=config.train.seed,
        )
        rows = len(stream.plans.epoch(0))
        assert phase.tokens == pytest.approx(stream.rows(0, rows).tokens / rows * settings.batch_size)
    assert "prepared corpus" in plan.disk
    count = sum(plan.parameters.values())
    assert plan.disk["best weights"] == 4 * count
    kept = plan_run(tiny.config(tmp_path, train={"keep": 2, "keep_every": 5}), say=silent).disk
    permanent = sum(phase.steps for phase in plan.phases) // 5
    assert permanent > 0
    assert kept[f"{3 + permanent} checkpoints"] == 12 * count * (3 + permanent)
    assert plan.hours * 3600 == pytest.approx(sum(phase.steps * phase.seconds for phase in plan.phases))


def test_activations_grow_with_the_rows(tmp_path: Path) -> None:
    data = f"data_dir={tmp_path}"
    sizes = [
        plan_run(
            load_config("tiny", [data, f"train.phases=[{{steps: 1, length: 16, batch_size: {rows}}}]"]), say=silent
        )
        .phases[0]
        .activation_bytes
        for rows in (4, 8)
    ]
    assert sizes[0] is not None
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.05)


def test_a_gpu_that_is_not_here_is_reckoned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--config", "base", "--gpu", "a100", "--data-dir", str(tmp_path), "-q"]
    assert command([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    one, two = plan["phases"]
    assert one["seconds"] == pytest.approx(one["flops"] / (0.4 * 312e12))
    assert sum(plan["parameters"].values()) == 110_106_428  # BertForPreTraining of transformers has as many
    assert command(arguments) == 0
    assert "A100" in capsys.readouterr().out
    assert two["length"] == 512
    with pytest.raises(RequestError, match="--gpu: abacus: not in the table"):
        plan_run(load_config("base"), gpu="abacus")


def test_a_time_reads_as_one_says_it() -> None:
    hours = {0.001: "less than 1 minute", 1 / 60: "1 minute", 0.4: "24 minutes", 1.25: "1.2 hours", 96: "4.0 days"}
    assert {value: _duration(value) for value in hours} == hours

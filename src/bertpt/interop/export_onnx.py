"""``bertpt export onnx``: encoder and masked-word model as ONNX graphs, checked in onnxruntime."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertpt.data.tokenizer import wordpiece
from bertpt.errors import BertptError, RequestError
from bertpt.files import FORMAT_VERSION, fingerprint, read_manifest, staged_directory, write_manifest
from bertpt.interop.check import largest_difference, outputs, sample_rows
from bertpt.interop.import_ import refuse_taken
from bertpt.interop.padded import PaddedEncoder, PaddedMaskedWords
from bertpt.interop.pretrained import build, load_pretrained
from bertpt.progress import Progress
from bertpt.progress import say as say_line

OPSET = 20  # the first with a GELU of its own
STAGE = "export-onnx"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, slots=True)
class ExportedGraphs:
    """The export: each graph with the largest difference of its outputs in onnxruntime."""

    directory: Path
    differences: dict[str, float]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.directory}: opset {OPSET}; any batch size, any length up to the model's positions"
        for name, difference in self.differences.items():
            yield f"  {name}: in onnxruntime, largest difference of any output {difference:.2g}"


def export_onnx(
    source: Path,
    out: Path,
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = say_line,
    progress: bool = True,
) -> ExportedGraphs:
    """Write ``encoder.onnx`` and, with an MLM head, ``mlm.onnx``, beside the tokenizer's files.

    Args:
        source: a run, a checkpoint, an import, or a transformers directory.
        out: the directory to make.
        overwrite: replace an export that is there.
        say: gets a line on what goes on.
        progress: show progress on stderr.

    Raises:
        RequestError: there is no model at ``source``, ``out`` is taken, or the packages are not installed.
        BertptError: onnxruntime computes something else; nothing is written.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(f"{', '.join(missing)}: not installed; pip install 'bertpt[onnx]'")
    refuse_taken(out, overwrite, lambda: (read_manifest(out) or {}).get("stage") == STAGE)
    pretrained = load_pretrained(source, say=say)
    model = build(pretrained, nsp=pretrained.pooler or "nsp" in pretrained.heads)[0].eval()
    graphs: dict[str, tuple[nn.Module, list[str]]] = {
        "encoder.onnx": (
            PaddedEncoder(model, pooler=pretrained.pooler),
            ["last_hidden_state", *(["pooler_output"] if pretrained.pooler else [])],
        )
    }
    if "mlm" in pretrained.heads:
        graphs["mlm.onnx"] = (PaddedMaskedWords(model), ["logits"])
    rows = sample_rows(pretrained)
    expected = outputs(pretrained, rows)
    with staged_directory(out) as aside:
        differences = {}
        with Progress("export onnx", unit="graphs", total=len(graphs), shown=progress) as shown:
            for name, (graph, names) in graphs.items():
                shown.note(f"{name}: tracing", say)
                _trace(graph, names, aside / name, rows)
                differences[name] = _check(aside / name, name, rows, expected)
                shown.add()
        positions = pretrained.model.max_position_embeddings
        wordpiece.save(aside, pretrained.tokens, pretrained.normalising, max_length=positions)
        settings = {"opset": OPSET, "outputs": {name: names for name, (_, names) in graphs.items()}}
        key = fingerprint({"stage": STAGE, "format": FORMAT_VERSION, "settings": settings})
        write_manifest(aside, stage=STAGE, key=key, inputs={}, settings=settings, counts={"differences": differences})
    return ExportedGraphs(out, differences)


def _trace(graph: nn.Module, names: list[str], path: Path, rows: dict[str, Tensor]) -> None:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    shapes = {name: {0: batch, 1: length} for name in _INPUTS}
    with _quiet(), torch.inference_mode(False), torch.no_grad():
        torch.onnx.export(
            graph.eval(),
            tuple(rows[name] for name in _INPUTS),
            path,
            input_names=_INPUTS,
            output_names=names,
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )


def _check(path: Path, what: str, rows: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Run the graph on the rows it was traced with, and on each of them alone and unpadded."""
    runtime: Any = importlib.import_module("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        together = _run(session, rows)
        worst = largest_difference(expected, together, f"{what} in onnxruntime")
        lengths = rows["attention_mask"].sum(1).tolist()
        alone = [
            _run(session, {name: tensor[index : index + 1, :length] for name, tensor in rows.items()})
            for index, length in enumerate(lengths)
        ]
    except BertptError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BertptError(f"{what}: onnxruntime cannot run it: {reason}") from error
    joined = {name: torch.cat([part[name] for part in alone]) for name in alone[0]}
    return max(worst, largest_difference(expected, joined, f"{what} in onnxruntime, one row at a time"))


def _run(session: Any, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"last_hidden_state": "hidden", "pooler_output": "pooled", "logits": "mlm_logits"}
    keys = [output.name for output in session.get_outputs()]
    taken = {value.name for value in session.get_inputs()}
    arrays = session.run(keys, {name: tensor.numpy() for name, tensor in rows.items() if name in taken})
    mask = rows["attention_mask"].bool()
    found = {names[key]: torch.from_numpy(array) for key, array in zip(keys, arrays, strict=True)}
    return {name: tensor[mask] if tensor.dim() == 3 else tensor for name, tensor in found.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter prints; a fault still comes up."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)

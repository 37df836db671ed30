"""The graph of a model as TensorBoard shows it: traced from its shape alone, without numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from bertpt.batch import Batch
from bertpt.config import Config
from bertpt.errors import RequestError
from bertpt.files import named_write_faults
from bertpt.model.pretraining import BertForPreTraining

_ROWS, _LENGTH, _MASKED = 2, 8, 3


class BERT(nn.Module):
    """A model that takes the tensors of a batch: a trace knows nothing else. Its name stands in the graph."""

    def __init__(self, model: BertForPreTraining) -> None:
        super().__init__()
        self.pretraining = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        names = ("input_ids", "token_type_ids", "position_ids", "grid_index", "first", "attention_mask")
        output = self.pretraining(Batch(**dict(zip((*names, "masked_positions"), tensors, strict=True))))
        logits = (output.mlm_logits, output.nsp_logits)
        return tuple(found for found in logits if found is not None)


def shapes_of(config: Config, vocab_size: int) -> BertForPreTraining:
    """The model on the device ``meta``: a Large one takes no memory, and no random number is drawn."""
    with torch.device("meta"):
        return BertForPreTraining(config.model, vocab_size, nsp=config.pairs.rule != "none")


def traced(config: Config, shapes: BertForPreTraining) -> tuple[Any, Any]:
    """The graph of a configuration's model, as TensorBoard's writers take it.

    Rows are full, so that the graph shows what is computed, and not how padding is left out.
    """
    from torch.utils.tensorboard._pytorch_graph import graph

    with warnings.catch_warnings():
        # The trace is of this one shape, and is drawn, not run. torch.jit.trace is deprecated, and all that
        # TensorBoard's writer of torch knows. What ``meta`` loads at its first use warns of itself.
        warnings.simplefilter("ignore")
        model = BERT(shapes)
        length = min(_LENGTH, config.model.max_position_embeddings)
        ids = torch.zeros(_ROWS * length, dtype=torch.int64)
        masked = torch.arange(1, 1 + _MASKED)
        batch = Batch.from_lengths(ids, ids, torch.full((_ROWS,), length), masked_positions=masked)
        batch = batch.to(torch.device("meta"))
        assert batch.masked_positions is not None
        tensors = (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.grid_index, batch.first)
        made: tuple[Any, Any] = graph(  # type: ignore[no-untyped-call]
            model, (*tensors, batch.attention_mask, batch.masked_positions)
        )
    return made


@dataclass(frozen=True, slots=True)
class Drawn:
    """Where a graph lies, and the parameters of its model by part."""

    directory: Path
    parameters: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"directory": str(self.directory), "parameters": dict(self.parameters)}


def draw_graph(config: Config, out: Path) -> Drawn:
    """Write the graph of a configuration's model for TensorBoard; nothing is trained, and no data are needed.

    Args:
        config: the configuration; its vocabulary has the size that ``tokenizer.vocab_size`` asks for.
        out: where TensorBoard is to look.

    Raises:
        RequestError: the shape of the model stands elsewhere, or ``out`` is a file.
    """
    from bertpt.train.cost import parameters_by_part

    if (file := next((place for place in (out, *out.parents) if place.is_file()), None)) is not None:
        raise RequestError(f"{file}: is a file, and the graph goes into a folder; name another with --out")

    if config.model.init_from is not None:
        raise RequestError("model.init_from: its shape is not read here; write the shape under model instead")
    model = shapes_of(config, config.tokenizer.vocab_size)
    with named_write_faults(out), SummaryWriter(str(out)) as writer:
        writer.file_writer.add_graph(traced(config, model))
    return Drawn(out, parameters_by_part(model))

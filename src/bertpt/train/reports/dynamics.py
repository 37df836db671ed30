"""How weights move: gradient norms and relative updates of the parts of a model, at the updates that are looked at.

Everything is taken from the weights and their gradients around the optimizer's step, by its hooks: no other update
costs anything, and ``train_step`` knows nothing of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_SAMPLED = 2**16  # elements of a tensor that a histogram is made of: its shape shows no more


def block_of(name: str) -> str:
    """The part that a parameter belongs to: ``embeddings``, ``layer_0`` and so on, ``heads`` (with the pooler)."""
    if (layer := re.search(r"\blayer\.(\d+)\.", name)) is not None:
        return f"layer_{layer[1]}"
    return "embeddings" if re.search(r"\bembeddings\.", name) else "heads"


class Dynamics:
    """Watches a model and its optimizer.

    Args:
        model: what is trained.
        optimizer: of all its parameters.
        clip: largest norm of the gradient, which is cut before the optimizer sees it.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, clip: float) -> None:
        self._clip = clip
        self._named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._blocks: dict[str, list[nn.Parameter]] = {}
        for name, parameter in self._named.items():
            self._blocks.setdefault(block_of(name), []).append(parameter)
        self._norms = self._histograms = False
        self._before: list[list[Tensor]] = []
        self._found: list[Tensor] = []
        self._samples: dict[str, Tensor] = {}
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def look(self, *, norms: bool, histograms: bool) -> None:
        """Whether the next update is looked at."""
        self._norms, self._histograms = norms, histograms
        self._found, self._samples = [], {}

    # A copy of the weights for the time of a step is exact for every optimizer, and needs less memory than the
    # activations that are gone by then. Making the update anew from the moments would be another optimizer.
    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        if self._histograms:
            self._samples = dict(self._sampled())
        if self._norms:
            gradients = [_norm([p.grad for p in block if p.grad is not None]) for block in self._blocks.values()]
            weights = [_norm(block) for block in self._blocks.values()]
            self._found = [torch.stack(gradients), torch.stack(weights)]
            self._before = [[p.detach().clone() for p in block] for block in self._blocks.values()]

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        if self._norms:
            for before, block in zip(self._before, self._blocks.values(), strict=True):
                torch._foreach_sub_(before, list[Tensor](block))
            self._found.append(torch.stack([_norm(moved) for moved in self._before]))
            self._before = []

    def values(self, gradient_norm: float) -> dict[str, float]:
        """What was found at the update that was looked at; empty when the optimizer was not called.

        ``gradient_norm_<block>`` is that before the gradient was cut, ``update_ratio_<block>`` (and ``update_ratio``,
        of all) the norm of the update over that of the weights. Waits for the device.

        Args:
            gradient_norm: of the whole gradient, before it was cut.
        """
        if len(self._found) < 3:
            return {}
        gradients, weights, moved = (found.double().tolist() for found in self._found)
        uncut = max(1.0, (gradient_norm + 1e-6) / self._clip)  # the inverse of what ``clip_grad_norm_`` does
        values = {"update_ratio": _ratio(math.hypot(*moved), math.hypot(*weights))}
        for block, gradient, weight, move in zip(self._blocks, gradients, weights, moved, strict=True):
            values[f"gradient_norm_{block}"] = gradient * uncut
            values[f"update_ratio_{block}"] = _ratio(move, weight)
        return values

    def histograms(self) -> dict[str, Tensor]:
        """Evenly spaced elements of each weight and its gradient (as it was cut), on the CPU, by tag."""
        return self._samples

    def _sampled(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._named.items():
            yield f"weights/{name}", _sample(parameter)
            if parameter.grad is not None:
                yield f"weights_gradients/{name}", _sample(parameter.grad)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all elements of all tensors; of none it is zero."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors)))) if tensors else torch.zeros(())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().flatten()
    return flat[:: -(-len(flat) // _SAMPLED)].float().cpu()

"""LAMB: Adam whose step is scaled to the norm of each weight matrix, for batches of many thousand rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """Algorithm 2 of You et al. 2020, with phi the identity.

    u = m / (sqrt(v) + eps) + decay w, with or without bias correction of m and v;  w -= lr |w| / |u| u.
    Groups without decay (biases, LayerNorm) take u as it is, as in the released code. Where one of the norms is 0 the
    ratio is 1. ``stacked`` of a group says how many matrices stand one above the other in each of its parameters
    (query, key and value): each has a ratio of its own.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        bias_correction: bool,
        weight_decay: float = 0.0,
    ) -> None:
        usual = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "stacked": 1}
        super().__init__(params, usual)
        self.bias_correction = bias_correction

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step(group, parameters)

    def _step(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        first, second = moments(self.state, parameters, beta1, beta2)
        for parameter in parameters:
            state = self.state[parameter]
            if "step" not in state:
                state["step"] = torch.tensor(0.0)
            state["step"] += 1  # on the CPU: nothing waits for a device
        corrections = [(1.0, 1.0)] * len(parameters)
        if self.bias_correction:
            steps = [self.state[p]["step"].item() for p in parameters]
            corrections = [(1 - beta1**step, 1 - beta2**step) for step in steps]
        updates = torch._foreach_sqrt(second)
        torch._foreach_div_(updates, [correction**0.5 for _, correction in corrections])
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, first)
        torch._foreach_div_(updates, [correction for correction, _ in corrections])
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
            for parameter, update in zip(parameters, updates, strict=True):
                _scale(parameter, update, group["stacked"])
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


def moments(
    states: Mapping[Tensor, dict[str, Any]], parameters: Sequence[Tensor], beta1: float, beta2: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Adam's running means of the gradients and of their squares (``exp_avg``, ``exp_avg_sq``), one update on."""
    gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
    for parameter in parameters:
        if not states[parameter]:
            states[parameter].update({name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")})
    first = [states[p]["exp_avg"] for p in parameters]
    second = [states[p]["exp_avg_sq"] for p in parameters]
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    return first, second


def _scale(parameter: Tensor, update: Tensor, stacked: int) -> None:
    """Multiply the update by the ratio of the norms, in place."""
    parts = update.view(stacked, -1)
    weight, change = parameter.view(stacked, -1).norm(dim=1, keepdim=True), parts.norm(dim=1, keepdim=True)
    parts.mul_(torch.where((weight > 0) & (change > 0), weight / change, 1.0))

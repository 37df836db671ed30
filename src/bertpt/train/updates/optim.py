"""The optimizers, with decay where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertpt.config.schema import Optimizer as OptimizerConfig
from bertpt.model.bert import SelfAttention
from bertpt.train.updates.lamb import Lamb, moments


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups by module type: weights of Linear and Embedding decay, biases and LayerNorm do not.

    Names are not asked (a renamed norm would silently decay). Each parameter is in one group, once.
    """
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, config: OptimizerConfig, *, sharded: bool = False) -> Optimizer:
    """The configured optimizer over all parameters of ``model``.

    Args:
        sharded: of several processes each keeps the moments of a part of the parameters, makes their updates, and sends
            what came out to the others.
    """
    groups = parameter_groups(model, config.weight_decay)
    settings: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    kind: Callable[..., Optimizer] = UncorrectedAdamW
    if config.kind == "lamb":
        groups, kind = _stacked_apart(model, groups), Lamb
        settings["bias_correction"] = config.bias_correction
    elif config.bias_correction:
        kind = torch.optim.AdamW
        settings["fused"] = True
    if not sharded:
        return kind(groups, **settings)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes a while to load

    return ZeroRedundancyOptimizer(groups, kind, parameters_as_bucket_view=True, **settings)  # type: ignore[arg-type]


def own_part(optimizer: Optimizer) -> Optimizer:
    """The optimizer that makes this process's updates and holds their moments: of a sharded one its own part."""
    return getattr(optimizer, "optim", optimizer)


def _stacked_apart(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups with the fused query, key and value weights in one of their own, marked as three matrices."""
    fused = {id(module.qkv.weight) for module in model.modules() if isinstance(module, SelfAttention)}
    decayed, plain = groups
    return [
        decayed | {"params": [p for p in decayed["params"] if id(p) not in fused]},
        decayed | {"params": [p for p in decayed["params"] if id(p) in fused], "stacked": 3},
        plain,
    ]


class UncorrectedAdamW(Optimizer):
    """Adam without bias correction, decoupled decay: ``AdamWeightDecayOptimizer`` of the released code.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= lr (m / (sqrt(v) + eps) + decay w).
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            first, second = moments(self.state, parameters, *group["betas"])
            lr = float(group["lr"])
            denominator = torch._foreach_sqrt(second)
            torch._foreach_add_(denominator, group["eps"])
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            torch._foreach_addcdiv_(parameters, first, denominator, -lr)

"""Where numbers that are not finite first come up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.train.updates.skips import not_finite
from bertpt.train.updates.step import autocast
from bertpt.train.work import Work

NOT_AGAIN = "not again in a second pass"


def blame(work: Work, batches: Sequence[Batch], precision: str) -> str:
    """Pass the micro-batches of an update once more, and say what is at fault in the first that shows it."""
    for batch in batches:

        def loss(batch: Batch = batch) -> Tensor:
            with autocast(batch.input_ids.device, precision):
                terms = work.objective(work.model, batch)
            return torch.stack([work.loss_weights[name] * term.sum for name, term in terms.losses.items()]).sum()

        if (found := name_first(work.model, loss)) != NOT_AGAIN:
            return found
    return NOT_AGAIN


def name_first(model: nn.Module, losses: Callable[[], Tensor]) -> str:
    """Where the first number that is not finite comes from, by one more pass of a batch that gives one.

    Args:
        model: its gradients are None before and after.
        losses: the forward pass, to the loss. [].

    Returns:
        The name of the first module whose output is not finite, with a parameter of it that is not; else that of the
        parameter nearest to the loss whose gradient is not.
    """
    names = {module: name for name, module in model.named_modules() if name}
    passed: list[nn.Module] = []
    faulty: list[nn.Module] = []

    def look(module: nn.Module, inputs: object, output: object) -> None:
        passed.append(module)
        tensors = [output] if isinstance(output, Tensor) else output if isinstance(output, tuple | list) else []
        floats = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_floating_point()]
        if floats and bool(not_finite(floats)):
            faulty.append(module)

    handles = [module.register_forward_hook(look) for module in names]
    try:
        loss = losses()
        if faulty:
            return f"first in the output of {names[faulty[0]]}{_own(faulty[0])}"
        for name, parameter in model.named_parameters():
            if bool(not_finite([parameter])):  # one that the forward pass does not show
                return f"parameter {name} itself is not finite"
        if bool(not_finite([loss])):
            return "first in the loss itself"
        loss.backward()  # type: ignore[no-untyped-call]
        # A head whose parameters are used without calling it stands at the end.
        aside = [module for module in names if module not in set(passed)]
        for module in [*reversed(aside), *reversed(passed)]:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.grad is not None and bool(not_finite([parameter.grad])):
                    return f"first in the gradient of {names[module]}.{name}"
        return NOT_AGAIN
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)


def _own(module: nn.Module) -> str:
    bad = [name for name, parameter in module.named_parameters(recurse=False) if bool(not_finite([parameter]))]
    return f", whose {bad[0]} is not finite" if bad else ""

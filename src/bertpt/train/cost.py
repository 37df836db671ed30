"""What training costs: parameters, floating point operations, and the speed that devices promise."""

from __future__ import annotations

from torch import nn

from bertpt.config.schema import Model

# Dense matrix products in bf16 with fp32 accumulation (V100, T4: fp16), operations per second, and memory in bytes,
# by a part of the device's name: figures of the vendor's data sheets, without sparsity.
_GIB = 1 << 30
DEVICES: dict[str, tuple[float, int]] = {
    "H200": (989e12, 141 * 10**9),
    "H100 PCIe": (756e12, 80 * _GIB),
    "H100": (989e12, 80 * _GIB),
    "A100": (312e12, 80 * _GIB),
    "L40S": (362e12, 48 * _GIB),
    "L4": (121e12, 24 * _GIB),
    "A10": (125e12, 24 * _GIB),
    "RTX 4090": (165e12, 24 * _GIB),
    "RTX 3090": (71e12, 24 * _GIB),
    "V100": (125e12, 32 * _GIB),
    "T4": (65e12, 16 * _GIB),
}


def find_device(name: str) -> tuple[str, float, int] | None:
    """Name in the table, operations per second and memory of a device such as ``NVIDIA A100-SXM4-80GB``."""
    plain = "".join(name.lower().replace("nvidia", "").replace("geforce", "").replace("-", " ").split())
    for known, (speed, memory) in DEVICES.items():
        if "".join(known.lower().split()) in plain:
            return known, speed, memory
    return None


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Parameters of the token embedding, the other embeddings, the layers, and pooler and heads."""
    parts = dict.fromkeys(("token embedding", "other embeddings", "layers", "pooler and heads"), 0)
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name:
            part = "token embedding"
        elif ".embeddings." in name:
            part = "other embeddings"
        elif ".encoder." in name:
            part = "layers"
        else:
            part = "pooler and heads"
        parts[part] += parameter.numel()
    return parts


def training_flops(
    model: Model,
    vocab_size: int,
    *,
    rows: float,
    tokens: float,
    predictions: float,
    pairs: bool,
    recompute: bool = False,
) -> float:
    """Floating point operations of forward and backward pass of a batch without its padding.

    Matrix products alone, two operations for a multiplication and an addition, the backward pass counted as two
    forward passes (as in appendix B of Narayanan et al. 2021). Rows are taken as equally long, which is the least that
    attention can need. ``recompute`` adds a forward pass of the layers; the model's own operations, which MFU is
    reckoned by, are those without it.
    """
    width, layers = model.hidden_size, model.num_hidden_layers
    layer = tokens * (8 * width**2 + 4 * width * model.ffn_size) + 4 * width * tokens**2 / max(rows, 1)
    head = predictions * (2 * width**2 + 2 * width * vocab_size)
    pooler = rows * (2 * width**2 + 4 * width) if pairs else 0
    return (4 if recompute else 3) * layers * layer + 3 * (head + pooler)

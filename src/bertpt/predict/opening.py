"""Opening a model to use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.interop.pretrained import build, load_pretrained
from bertpt.model.pretraining import BertForPreTraining


class Opened(NamedTuple):
    """A model in evaluation mode, on a GPU when there is one, and its tokenizer. It has no next-sentence head."""

    model: BertForPreTraining
    tokenizer: WordPieceTokenizer


def open_model(path: Path, *, mlm: bool, say: Callable[[str], None]) -> Opened:
    """Open a run (its newest intact checkpoint), a checkpoint, an imported or a transformers directory.

    Args:
        path: the directory.
        mlm: whether the masked-word head is needed.
        say: gets what has to be known of the weights.

    Raises:
        RequestError: nothing of the kind, damaged, or without the head that is needed.
    """
    pretrained = load_pretrained(path, say=say)
    for note in pretrained.notes:
        say(f"{path}: {note}")
    if mlm and "mlm" not in pretrained.heads:
        raise RequestError(
            f"{path}: holds no masked-word head, so its guesses would be random; `bertpt pretrain` with"
            f" --set model.init_from={path} trains one"
        )
    model, _ = build(pretrained, nsp=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Opened(model.to(device).eval(), pretrained.open_tokenizer())

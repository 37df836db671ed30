"""``bertpt export hf``: a directory that transformers loads, checked before it gets its name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertpt.data.tokenizer import wordpiece
from bertpt.errors import BertptError
from bertpt.files import read_json, staged_directory, write_file, write_json
from bertpt.interop.card import model_card
from bertpt.interop.check import largest_difference, outputs, sample_rows
from bertpt.interop.hf_config import write_config
from bertpt.interop.import_ import refuse_taken
from bertpt.interop.names import few, to_hf
from bertpt.interop.pretrained import Pretrained, load_pretrained
from bertpt.progress import Progress
from bertpt.progress import say as say_line
from bertpt.train.checkpoints.saving import write_tensors

_TEXTS = ("The quick brown fox, 1984!", "Café ÉLAN naïve", "北京 is a city", "a\u200bb \U0001f600 c\td", "x" * 101)
_OFFLINE = "HF_HUB_OFFLINE"


@dataclass(frozen=True, slots=True)
class Exported:
    """The export and what its checks found.

    Attributes:
        directory: the export.
        architecture: the transformers class that takes all of its weights.
        difference: largest difference of any output, our model against the files read back.
        difference_transformers: the same against transformers; ``None`` when it is not installed.
    """

    directory: Path
    architecture: str
    difference: float
    difference_transformers: float | None

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.directory}: {self.architecture}"
        yield f"  read back by bertpt: largest difference of any output {self.difference:.2g}"
        if self.difference_transformers is None:
            yield "  not checked in transformers: it is not installed (pip install 'bertpt[hf]')"
        else:
            yield f"  loaded by transformers: largest difference of any output {self.difference_transformers:.2g}"


def architecture_of(pretrained: Pretrained) -> str:
    """The transformers class whose parameters are exactly these."""
    return {
        frozenset({"mlm", "nsp"}): "BertForPreTraining",
        frozenset({"mlm"}): "BertForMaskedLM",
        frozenset({"nsp"}): "BertForNextSentencePrediction",
    }.get(pretrained.heads, "BertModel")


def has_transformers() -> bool:
    """Whether an export can be tried there."""
    return importlib.util.find_spec("transformers") is not None


@contextlib.contextmanager
def exporting(out: Path, progress: bool) -> Iterator[tuple[Path, Progress]]:
    """The folder that becomes ``out`` when nothing is raised, and progress over its two or three steps."""
    with (
        staged_directory(out) as aside,
        Progress("export hf", unit="steps", total=2 + has_transformers(), shown=progress) as shown,
    ):
        yield aside, shown


def export_hf(
    source: Path,
    out: Path,
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = say_line,
    progress: bool = True,
) -> Exported:
    """Write a model in the Hugging Face layout and check it: read back by us, and by transformers when it is installed.

    Args:
        source: a run, a checkpoint, an import, or a transformers directory.
        out: the directory to make.
        overwrite: replace a model directory that is there.
        say: gets a line on what goes on.
        progress: show progress on stderr.

    Raises:
        RequestError: there is no model at ``source``, or ``out`` is taken.
        BertptError: a check failed; nothing is written.
    """
    refuse_taken(out, overwrite, lambda: (out / "config.json").is_file() and (out / "model.safetensors").is_file())
    pretrained = load_pretrained(source, say=say)
    tokenizer = pretrained.open_tokenizer()
    architecture = architecture_of(pretrained)
    positions = pretrained.model.max_position_embeddings
    with exporting(out, progress) as (aside, shown):
        write_json(
            aside / "config.json",
            write_config(
                pretrained.model,
                pretrained.vocab_size,
                architecture=architecture,
                special_ids=tokenizer.special_ids,
            ),
        )
        tensors = to_hf(pretrained.weights, pretrained.vocab_size)
        write_tensors(tensors, aside / "model.safetensors")
        wordpiece.save(aside, pretrained.tokens, pretrained.normalising, max_length=positions)
        write_file(aside / "README.md", model_card(pretrained, source, architecture))
        shown.add(done="written")
        rows = sample_rows(pretrained)
        expected = outputs(pretrained, rows)
        difference = _read_back(aside, pretrained, rows, expected)
        shown.add(done="read back")
        theirs = None
        if has_transformers():
            theirs = _in_transformers(aside, pretrained, rows, expected)
            shown.add(done="loaded by transformers")
    return Exported(out, architecture, difference, theirs)


def _read_back(aside: Path, pretrained: Pretrained, rows: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    again = load_pretrained(aside)
    same = (again.tokens, again.normalising) == (pretrained.tokens, pretrained.normalising)
    if not same or (again.heads, again.pooler) != (pretrained.heads, pretrained.pooler):
        raise BertptError(f"{pretrained.origin}: the files that were written hold another tokenizer or other heads")
    return largest_difference(expected, outputs(again, rows), "the files read back")


def _in_transformers(
    aside: Path, pretrained: Pretrained, rows: dict[str, Tensor], expected: dict[str, Tensor]
) -> float:
    architecture = read_json(aside / "config.json")["architectures"][0]
    with quiet_transformers() as transformers:
        model, info = getattr(transformers, architecture).from_pretrained(
            aside, output_loading_info=True, local_files_only=True
        )
        faults = {name for names in info.values() for name in names}
        # A masked-word model of others may come with a pooler, which its class has no place for.
        faults -= {f"{base}pooler.dense.{part}" for base in ("bert.", "") for part in ("weight", "bias")}
        if faults:
            raise BertptError(f"transformers does not load the export as it should: {few(map(str, faults))}")
        same_ids(pretrained, transformers.AutoTokenizer.from_pretrained(aside, local_files_only=True))
        found = _their_outputs(model.eval(), pretrained, rows)
    return largest_difference(expected, found, "transformers")


def same_ids(pretrained: Pretrained, theirs: Any) -> None:
    """Refuse an export whose tokenizer makes other ids in transformers."""
    ours = pretrained.open_tokenizer().encode_sentences(_TEXTS)
    for text, ids in zip(_TEXTS, ours, strict=True):
        if (found := theirs(text, add_special_tokens=False)["input_ids"]) != ids:
            raise BertptError(f"transformers makes other ids of {text!r}: {found} in place of {ids}")


def _their_outputs(model: Any, pretrained: Pretrained, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of transformers by our names, of the real tokens."""
    with torch.inference_mode():
        output = model(**rows, output_hidden_states=True)
    mask = rows["attention_mask"].bool()
    found = {"hidden": output.hidden_states[-1][mask]}
    if "mlm" in pretrained.heads:
        found["mlm_logits"] = (output.prediction_logits if "nsp" in pretrained.heads else output.logits)[mask]
    if "nsp" in pretrained.heads:
        found["nsp_logits"] = output.seq_relationship_logits if "mlm" in pretrained.heads else output.logits
    if not pretrained.heads and pretrained.pooler:
        found["pooled"] = output.pooler_output
    return found


@contextlib.contextmanager
def quiet_transformers() -> Iterator[Any]:
    """The library, offline and without messages or bars; both as they were afterwards."""
    before = os.environ.get(_OFFLINE)
    os.environ[_OFFLINE] = "1"
    try:
        transformers = importlib.import_module("transformers")
        logging = transformers.utils.logging
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
    except (BertptError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BertptError(f"transformers does not load the export: {reason}") from error
    finally:
        if before is None:
            del os.environ[_OFFLINE]
        else:
            os.environ[_OFFLINE] = before

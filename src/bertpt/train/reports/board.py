"""TensorBoard of a run, arranged so that its first page says whether the model learns.

``tb/`` holds one TensorBoard run for each line of a chart, since lines of one tag share axes: ``train``, ``heldout``,
and the constant ones ``unigram`` and ``chance``. What belongs to all of them (configuration, corpus, graph,
hyper-parameters, the layout of the custom charts) lies in ``tb/`` itself. Tags are grouped so that the alphabet, by
which TensorBoard orders them, puts losses and accuracies first, and among the texts, of which it opens two groups,
the sentences before the long configuration.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpt.errors import BertptError
from bertpt.files import named_write_faults

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.tensorboard import SummaryWriter

TRAIN, HELDOUT = "train", "heldout"
FLUSH_SECONDS = 20  # TensorBoard reads its files again every 30
_OF_OPTIMIZER = {"lr", "gradient_norm", "update_ratio", "skipped", "loss_scale"}

# Categories of the page "custom scalars": titles of charts, and the tags whose lines they show.
_LAYOUT = {
    "Does it learn?": {
        "masked words: loss (nats)": ["learning/mlm_loss"],
        "masked words: accuracy": ["learning/mlm_accuracy"],
        "sentence pairs: loss (nats)": ["learning/nsp_loss"],
        "sentence pairs: accuracy": ["learning/nsp_accuracy"],
    },
    "Which words?": {
        "accuracy by frequency rank": ["masked_words/accuracy_rank_.*"],
        "accuracy of whole words and of pieces": ["masked_words/accuracy_(whole_word|word_piece)"],
    },
    "Is the optimizer well?": {
        "learning rate": ["optimizer/lr"],
        "gradient norm by block": ["optimizer_blocks/gradient_norm_.*"],
        "update / weight by block": ["optimizer_blocks/update_ratio_.*"],
    },
}


def tag(kind: str, name: str) -> str:
    """The tag of a metric, ``group/name``; ``kind`` is that of the log (train, heldout)."""
    if name in _OF_OPTIMIZER:
        return f"optimizer/{name}"
    if name.startswith(("gradient_norm_", "update_ratio_")):
        return f"optimizer_blocks/{name}"
    if name.startswith("mlm_accuracy_"):
        return f"masked_words/{name.removeprefix('mlm_')}"
    if name in ("nsp_confidence", "nsp_calibration_error"):
        return f"pairs/{name}"
    if kind == HELDOUT or name.endswith(("_loss", "_accuracy")):
        return f"learning/{name}"
    return f"speed/{name}"


def escaped(text: str) -> str:
    """``text`` as it stands, inside a table of Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+|-])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown, of plain text."""
    lines = [header, ["---"] * len(header), *([escaped(str(cell)) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """A block of code in Markdown, by its indent: no text can end it."""
    return "\n".join(f"    {line}" for line in text.splitlines())


@contextlib.contextmanager
def faults(path: Path) -> Iterator[None]:
    """A disk that is full or gone as one line; TensorBoard's own threads open files again, and hand on what they meet.

    Raises:
        BertptError: nothing can be written below ``path``.
    """
    try:
        with named_write_faults(path):
            yield
    except FileNotFoundError as error:
        raise BertptError(
            f"{path.parent}: the run's directory is gone: nothing can be saved; bring it back to go on with it"
        ) from error


class Board:
    """What a run shows in TensorBoard; after a resume no step stands twice.

    Args:
        directory: ``tb/`` of the run. What it holds of a run that begins (anew) is removed.
        start: the update that the run goes on from: what was written of later ones was before a kill, and comes again.
        total: updates of the whole run.
        again: so does the evaluation after ``start``.
    """

    def __init__(self, directory: Path, start: int, total: int, *, again: bool = False) -> None:
        self.directory, self.start, self.total = directory, start, total
        self._writers: dict[str, SummaryWriter] = {}
        if not start:
            shutil.rmtree(directory, ignore_errors=True)
        # What is said of the whole run is said at every start, at the step of the start.
        self._open("", start)
        self._open(TRAIN, start + 1)
        self._open(HELDOUT, start + 1 - again)

    def _open(self, kind: str, purge: int) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter  # slow, and only who trains needs it

        with faults(self.directory):
            place = str(self.directory / kind)
            self._writers[kind] = SummaryWriter(place, purge_step=purge, flush_secs=FLUSH_SECONDS)
        return self._writers[kind]

    def scalars(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Draw the metrics of update ``step``."""
        with faults(self.directory):
            for name, value in values.items():
                self._writers[kind].add_scalar(tag(kind, name), value, step)

    def constants(self, line: str, values: Mapping[str, float]) -> None:
        """A level line over the whole run in the held-out charts of ``values``: two points each."""
        with faults(self.directory), contextlib.closing(self._open(line, 0)) as writer:
            for name, value in values.items():
                for step in (0, self.total):
                    writer.add_scalar(tag(HELDOUT, name), value, step)
        del self._writers[line]

    def text(self, name: str, markdown: str) -> None:
        """What does not change over the run."""
        with faults(self.directory):
            self._writers[""].add_text(name, markdown, self.start)

    def heldout_text(self, name: str, markdown: str, step: int) -> None:
        """What an evaluation after update ``step`` has found."""
        with faults(self.directory):
            self._writers[HELDOUT].add_text(name, markdown, step)

    def histograms(self, values: Mapping[str, Tensor], step: int) -> None:
        """Distributions of the finite elements of each tensor (on the CPU)."""
        with faults(self.directory):
            for name, tensor in values.items():
                if len(finite := tensor[tensor.isfinite()]):
                    self._writers[TRAIN].add_histogram(name, finite, step)

    def layout(self) -> None:
        """Arrange the page "custom scalars"."""
        from torch.utils.tensorboard.summary import custom_scalars

        charts = {
            category: {
                title: ["Multiline", [f"^{expression}$" for expression in tags]] for title, tags in found.items()
            }
            for category, found in _LAYOUT.items()
        }
        self._summary(custom_scalars(charts))  # type: ignore[no-untyped-call]

    def graph(self, drawn: tuple[Any, Any]) -> None:
        """Draw the graph that ``train.graph`` has made; once, for it has no step."""
        if not self.start:
            with faults(self.directory):
                self._file_writer().add_graph(drawn)

    def hyperparameters(self, settings: Mapping[str, bool | float | str], metrics: Sequence[tuple[str, str]]) -> None:
        """A row of the page "hparams": settings, and the last values of metrics, each a kind and a name."""
        from tensorboard.plugins.hparams import summary_v2

        columns = [summary_v2.HParam(name) for name in settings]
        shown = [summary_v2.Metric(tag(kind, name), kind, f"{kind} {name}") for kind, name in metrics]
        self._summary(summary_v2.hparams_config_pb(columns, shown))
        self._summary(summary_v2.hparams_pb(dict(settings)))

    def finished(self) -> None:
        """Mark the run's row of the page "hparams"."""
        from torch.utils.tensorboard.summary import hparams

        self._summary(hparams({}, {})[2], self.total)  # type: ignore[no-untyped-call]

    def _summary(self, made: Any, step: int | None = None) -> None:
        with faults(self.directory):
            self._file_writer().add_summary(made, self.start if step is None else step)

    def _file_writer(self) -> Any:
        return self._writers[""].file_writer

    def close(self) -> None:
        """Write what is left, of all that can be written."""
        with faults(self.directory), contextlib.ExitStack() as closing:
            for writer in self._writers.values():
                closing.callback(writer.close)

"""The class of transformers that each task is exported to, and what the two must agree on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from bertpt.batch import Batch
from bertpt.tasks.task import Facts


class Counterpart(ABC):
    """A task's head in transformers."""

    architecture: ClassVar[str]
    auto_class: ClassVar[str]
    pipeline_tag: ClassVar[str]

    def fault(self, facts: Facts) -> str | None:
        """Why a run cannot be exported; ``None``: it can."""
        return None

    @abstractmethod
    def config(self, facts: Facts) -> dict[str, Any]:
        """Keys of ``config.json`` beside those of the encoder."""

    @abstractmethod
    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Outputs of our model."""

    @abstractmethod
    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """The same of theirs; ``tokens`` is the mask [B, L]."""

    @abstractmethod
    def kind(self, facts: Facts) -> str:
        """What the model does, for its card."""

    @abstractmethod
    def example(self, facts: Facts) -> Iterator[str]:
        """Lines of Python that use the export."""


def named(labels: Sequence[str]) -> dict[str, Any]:
    """``id2label`` and ``label2id``."""
    return {
        "id2label": {str(index): name for index, name in enumerate(labels)},
        "label2id": {name: index for index, name in enumerate(labels)},
    }


class SequenceClassification(Counterpart):
    """Classes, or one number, of a text or a pair."""

    architecture = "BertForSequenceClassification"
    auto_class = "AutoModelForSequenceClassification"
    pipeline_tag = "text-classification"

    def fault(self, facts: Facts) -> str | None:
        """The deeper head has no place there."""
        if facts["head"]["kind"] != "deep":
            return None
        return (
            f"its head is deep (dense, ReLU, dropout), which {self.architecture} has no place for; train with"
            " head.kind=linear to export"
        )

    def config(self, facts: Facts) -> dict[str, Any]:
        """Labels and the kind of problem."""
        names = facts["labels"] or ["LABEL_0"]  # transformers' own name for the number of a regression
        problem = "regression" if facts["regression"] else "single_label_classification"
        return named(names) | {"problem_type": problem}

    def ours(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Logits [B, labels]."""
        return {"logits": model(batch)}

    def theirs(self, output: Any, tokens: Tensor) -> dict[str, Tensor]:
        """Logits [B, labels]."""
        return {"logits": output.logits}

    def kind(self, facts: Facts) -> str:
        """Regression, or the labels."""
        kind = "regression" if facts["regression"] else f"{facts['task']}: {', '.join(facts['labels'])}"
        return f"{kind}{' (pairs of texts)' if facts['pair'] else ''}"

    def example(self, facts: Facts) -> Iterator[str]:
        """``pipeline``."""
        text = '{"text": "...", "text_pair": "..."}' if facts["pair"] else '"..."'
        yield from ["from transformers import pipeline", ""]
        yield f'print(pipeline("{self.pipeline_tag}", model="DIRECTORY")({text}))'


COUNTERPARTS: dict[str, Counterpart] = {
    "classification": SequenceClassification(),
    "sentiment": SequenceClassification(),
}

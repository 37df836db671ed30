"""The tasks by name."""

from __future__ import annotations

from torch import nn

from bertpt.config.schema import Model
from bertpt.tasks.classification.classification import Classification
from bertpt.tasks.qa.qa import QuestionAnswering
from bertpt.tasks.summarization.summarization import Summarization
from bertpt.tasks.tagging.tagging import Tagging
from bertpt.tasks.task import Facts, Task

TASKS: dict[str, Task] = {
    "classification": Classification(),
    "sentiment": Classification(),
    "ner": Tagging(),
    "tagging": Tagging(),
    "qa": QuestionAnswering(),
    "summarization": Summarization(),
}


def build(facts: Facts) -> nn.Module:
    """The model that the facts of a run describe, with random weights."""
    return TASKS[facts["task"]].build(Model.model_validate(facts["model"]), facts)

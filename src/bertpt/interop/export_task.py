"""``bertpt export hf`` of a fine-tuned run: the matching ``BertFor...``, checked before it gets its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bertpt.batch import Batch
from bertpt.data.tokenizer import wordpiece
from bertpt.errors import BertptError, RequestError
from bertpt.files import read_json, write_file, write_json
from bertpt.interop.check import largest_difference, sample_rows
from bertpt.interop.counterparts import COUNTERPARTS, Counterpart
from bertpt.interop.export_hf import Exported, exporting, has_transformers, quiet_transformers, same_ids
from bertpt.interop.foreign import read_vocabulary
from bertpt.interop.hf_config import write_config
from bertpt.interop.import_ import refuse_taken
from bertpt.interop.names import few, from_hf, to_hf
from bertpt.interop.pretrained import Pretrained
from bertpt.progress import say as say_line
from bertpt.tasks.evaluation import EVALUATION, open_best
from bertpt.tasks.kinds import TASKS, build
from bertpt.tasks.rundir import TaskRun, open_task_run
from bertpt.tasks.task import Facts
from bertpt.train.checkpoints.saving import write_tensors
from bertpt.train.evaluate import evaluating


def export_task(
    source: Path,
    out: Path,
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = say_line,
    progress: bool = True,
) -> Exported:
    """Write the best epoch of a run in the Hugging Face layout and check it: read back, and in transformers.

    Args:
        source: a run of ``bertpt finetune``.
        out: the directory to make.
        overwrite: replace a model directory that is there.
        say: gets lines for people.
        progress: show progress on stderr.

    Raises:
        RequestError: no such run, its head has no counterpart in transformers, or ``out`` is taken.
        BertptError: a check failed; nothing is written.
    """
    refuse_taken(out, overwrite, lambda: (out / "config.json").is_file() and (out / "model.safetensors").is_file())
    run = open_task_run(source)
    model, checkpoint = open_best(run)
    facts = checkpoint.state
    counterpart = COUNTERPARTS[run.config.task]
    if fault := counterpart.fault(facts):
        raise RequestError(f"{source}: {fault}")
    note = counterpart.note(facts)
    facts = counterpart.exported(facts)
    pretrained = _as_pretrained(run, model, facts)
    rows = sample_rows(pretrained)
    expected = _outputs(counterpart, model, rows)
    theirs = None
    with exporting(out, progress) as (aside, shown):
        write_json(aside / "config.json", _config(counterpart, model, pretrained, facts))
        tensors = to_hf(pretrained.weights, pretrained.vocab_size)
        write_tensors(tensors, aside / "model.safetensors")
        positions = pretrained.model.max_position_embeddings
        wordpiece.save(aside, pretrained.tokens, pretrained.normalising, max_length=positions)
        write_file(aside / "README.md", "\n".join(_card(run, counterpart, facts, note)) + "\n")
        shown.add(done="written")
        difference = _read_back(aside, counterpart, pretrained, facts, rows, expected)
        shown.add(done="read back")
        if has_transformers():
            theirs = _in_transformers(aside, counterpart, pretrained, rows, expected)
            shown.add(done="loaded by transformers")
    if note:
        say(f"{out}: {note}")
    say(f"{out}: epoch {facts['best']['epoch']}, the best by {run.config.metric} on dev")
    return Exported(out, counterpart.architecture, difference, theirs)


def _as_pretrained(run: TaskRun, model: Any, facts: Facts) -> Pretrained:
    vocabulary = read_vocabulary(run.tokenizer)
    kept = build(facts).state_dict().keys()
    return Pretrained(
        model=model.config,
        vocab_size=len(vocabulary.tokens),
        heads=frozenset(),
        pooler=model.bert.pooler is not None,
        weights={name: tensor for name, tensor in model.state_dict().items() if name in kept},
        tokenizer=run.tokenizer,
        origin=str(run.directory),
        tokens=vocabulary.tokens,
        normalising=vocabulary.normalising,
    )


def _config(counterpart: Counterpart, model: Any, pretrained: Pretrained, facts: Facts) -> dict[str, Any]:
    special_ids = pretrained.open_tokenizer().special_ids
    base = write_config(
        pretrained.model, pretrained.vocab_size, architecture=counterpart.architecture, special_ids=special_ids
    )
    dropout = {"classifier_dropout": model.dropout.p} if hasattr(model, "dropout") else {}
    return base | dropout | counterpart.config(facts)


def _outputs(counterpart: Counterpart, model: nn.Module, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    with evaluating(model):
        batch = Batch.from_padded(rows["input_ids"], rows["attention_mask"], rows["token_type_ids"])
        return counterpart.ours(model, batch)


def _read_back(
    aside: Path,
    counterpart: Counterpart,
    pretrained: Pretrained,
    facts: Facts,
    rows: dict[str, Tensor],
    expected: dict[str, Tensor],
) -> float:
    vocabulary = read_vocabulary(aside)
    if (vocabulary.tokens, vocabulary.normalising) != (pretrained.tokens, pretrained.normalising):
        raise BertptError(f"{pretrained.origin}: the files that were written hold another tokenizer")
    again = build(facts | {"model": facts["model"] | {"pad_vocab_to_multiple_of": 1}})
    again.load_state_dict(from_hf(load_file(aside / "model.safetensors")))
    return largest_difference(expected, _outputs(counterpart, again, rows), "the files read back")


def _in_transformers(
    aside: Path,
    counterpart: Counterpart,
    pretrained: Pretrained,
    rows: dict[str, Tensor],
    expected: dict[str, Tensor],
) -> float:
    with quiet_transformers() as transformers:
        model, info = getattr(transformers, counterpart.auto_class).from_pretrained(
            aside, output_loading_info=True, local_files_only=True
        )
        if faults := {name for names in info.values() for name in names}:
            raise BertptError(f"transformers does not load the export as it should: {few(map(str, faults))}")
        same_ids(pretrained, transformers.AutoTokenizer.from_pretrained(aside, local_files_only=True))
        with torch.inference_mode():
            found = counterpart.theirs(model.eval()(**rows), rows["attention_mask"].bool())
    return largest_difference(expected, found, "transformers")


def _card(run: TaskRun, counterpart: Counterpart, facts: Facts, note: str | None) -> Iterator[str]:
    config, train = run.config, run.config.train
    yield from ["---", "library_name: transformers", f"pipeline_tag: {counterpart.pipeline_tag}"]
    yield from ["tags: [bert, bertpt]", "---", "", f"# {config.name}", ""]
    yield f"A BERT fine-tuned for {counterpart.kind(facts)}. Made with bertpt."
    if note:
        yield from ["", f"In this export {note}; the scores below are those of the run."]
    yield from ["", "```python", *counterpart.example(facts), "```", "", "## Training", ""]
    yield (
        f"Up to {train.epochs} epochs of {train.batch_size} rows an update, peak rate {train.lr}, {train.max_length}"
        f" tokens a row at most, seed {train.seed}; started from {Path(config.from_).name}. This is epoch"
        f" {facts['best']['epoch']}, the best by {config.metric} on the development file."
    )
    if not (run.directory / EVALUATION).is_file():
        return
    splits = read_json(run.directory / EVALUATION)["splits"]
    yield from ["", "## Scores", "", f"Baseline: {TASKS[config.task].baseline}.", ""]
    yield f"| | {' | '.join(f'{split} | baseline' for split in splits)} |"
    yield f"|---|{'---|---|' * len(splits)}"
    for name in splits["dev"]["scores"]:
        values = [(split["scores"][name], split["baseline"].get(name)) for split in splits.values()]
        cells = [_score(value) for pair in values for value in pair]
        if any(cells):
            yield f"| {name} | {' | '.join(cells)} |"


def _score(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.4f}"

"""Pre-training: its objective, its batches and scores, and ``bertpt pretrain``."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, cast

import torch

from bertpt.batch import Batch
from bertpt.config import Config, plain
from bertpt.data.locate import finished_store, tokenizer_dir, trained_store
from bertpt.data.rows.baselines import store_unigrams, unigram_entropy
from bertpt.data.rows.loader import BatchStream
from bertpt.data.rows.mixture import mixture_of
from bertpt.data.rows.plan import pair_labels
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer, load_tokenizer
from bertpt.data.tokens.paircheck import check_pairs
from bertpt.data.tokens.store import TokenStore
from bertpt.data.tokens.workers import processors
from bertpt.errors import BertptError, RequestError
from bertpt.files import check_hashes
from bertpt.model.pretraining import BertForPreTraining, pretraining_losses
from bertpt.progress import counted
from bertpt.progress import say as say_stderr
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.checkpoints.saving import Writer, copied, write_weights
from bertpt.train.cost import training_flops
from bertpt.train.doctor.watch import Watch
from bertpt.train.evaluate import EVALUATION_SEED, heldout_scores, predict_heldout
from bertpt.train.initial import InitialWeights, checked_start, start_from, with_keys
from bertpt.train.loop import Loop
from bertpt.train.ranks import ALONE, Ranks, joined
from bertpt.train.reports.board import Board
from bertpt.train.reports.breakdown import breakdown
from bertpt.train.reports.introduction import introduce, samples_table
from bertpt.train.reports.samples import Masked, fill, masked_sentences
from bertpt.train.rundir import BEST, Run, opened_alone, run_path, weights_are_gone
from bertpt.train.updates.cuts import Cuts, check_shares, micro_batches
from bertpt.train.updates.microbatch import with_micro_batches
from bertpt.train.updates.step import Objective, Terms, Totals
from bertpt.world import World

_log = logging.getLogger(__name__)
_SENTENCES, _TOP = 5, 5  # shown at each evaluation; guesses for each


def pretraining_objective(model: BertForPreTraining, batch: Batch) -> Terms:
    """MLM and (with pairs) NSP loss terms and right predictions."""
    losses = pretraining_losses(model(batch), batch)
    if losses.nsp is None or losses.nsp_right is None:
        return Terms({"mlm": losses.mlm}, {"mlm": losses.mlm_right})
    return Terms({"mlm": losses.mlm, "nsp": losses.nsp}, {"mlm": losses.mlm_right, "nsp": losses.nsp_right})


def pretraining_counts(batch: Batch) -> dict[str, int]:
    """Counts of the loss terms of ``pretraining_objective``."""
    counts = {"mlm": batch.predictions}
    return counts if batch.next_sentence_label is None else counts | {"nsp": batch.rows}


def choose_device(name: str, world: World = ALONE.world) -> torch.device:
    """``auto`` is a GPU when there is one; of several processes of a machine each takes its own.

    Raises:
        RequestError: ``cuda`` was asked for and there is none, or there are fewer than processes.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise RequestError("train.device: cuda was asked for, and torch sees no CUDA device; set auto or cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if world.size == 1:
        return torch.device("cuda")
    if world.local_rank >= (count := torch.cuda.device_count()):
        raise RequestError(
            f"train.device: {counted(count, 'GPUs')} for more processes than that; start {count} of them on this"
            " machine (torchrun --nproc-per-node), or set train.device=cpu"
        )
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def choose_precision(name: str, device: torch.device) -> str:
    """``auto`` is bf16 on a GPU that computes in it, else fp32.

    Raises:
        RequestError: fp16 on a CPU.
    """
    if name == "fp16" and device.type != "cuda":
        raise RequestError(
            f"train.precision: fp16 needs a CUDA device, this is the {device.type.upper()}; set fp32 (or auto)"
        )
    if name != "auto":
        return name
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def scoring_precision(name: str, device: torch.device) -> str:
    """As :func:`choose_precision`, but a model that was trained in fp16 is scored in fp32 where there is no GPU."""
    return choose_precision("auto" if name == "fp16" and device.type != "cuda" else name, device)


def _now(job: Callable[[], object]) -> None:
    job()


class PreTraining:
    """The work of a pre-training run, for the loop: phases of rows of growing length, MLM and NSP.

    Args:
        run: its directory keeps the planned epochs.
        store: the tokens.
        device: where the model and the batches go.
        precision: of the evaluation, ``fp32``, ``bf16`` or ``fp16``.
        later: does what takes time, in its order, while training goes on (``Writer.submit``); default: at once.
        ranks: the processes that train together: each takes its share of every micro-batch.
        progress: whether that of evaluations is shown.
    """

    def __init__(
        self,
        run: Run,
        store: TokenStore,
        device: torch.device,
        precision: str,
        later: Callable[[Callable[[], object]], None] = _now,
        ranks: Ranks = ALONE,
        *,
        progress: bool = False,
    ) -> None:
        config, self.ranks = run.config, ranks
        self.run, self.config, self.store, self.device, self.precision = run, config, store, device, precision
        torch.manual_seed(config.train.seed)
        self.model = BertForPreTraining(config.model, store.vocab_size, nsp=config.pairs.rule != "none").to(device)
        self.model.bert.encoder.recompute = config.train.activation_checkpointing
        self.total = sum(phase.steps for phase in config.train.phases)
        rooms = (phase.length * phase.rows_before(phase.steps) for phase in config.train.phases)
        self._room = list(accumulate(rooms, initial=0))  # for tokens, before each phase and in all
        self.mixture = mixture_of(config.corpus, store.source_labels)
        self.loss_weights = {"mlm": 1.0, "nsp": config.train.nsp_weight}
        self._streams = [self._stream(index, [0]) for index in range(len(config.train.phases))]
        self._later = later
        self._progress = progress
        self.best: dict[str, float] | None = None
        self.watch: Callable[[int, Mapping[str, float]], None] = lambda step, scores: None
        self._samples: tuple[WordPieceTokenizer, list[Masked]] | None = None

    objective = staticmethod(pretraining_objective)
    count_terms = staticmethod(pretraining_counts)

    def flops(self, totals: Totals) -> float:
        """Operations of the updates in ``totals``; of skipped ones, the vocabulary's are not counted."""
        return training_flops(
            self.config.model,
            self.store.vocab_size,
            rows=totals.rows,
            tokens=totals.tokens,
            predictions=float(totals.counts["mlm"]),
            pairs="nsp" in totals.counts,
        )

    def updates(self, done: int) -> Iterator[list[Batch]]:
        """The micro-batches of each update after the first ``done``, phase after phase."""
        begin = 0
        for phase, stream in zip(self.config.train.phases, self._streams, strict=True):
            first = max(0, done - begin)
            batches = stream.batches(
                Cuts(phase, first, self.ranks.rank, self.ranks.size),
                workers=min(self.config.train.workers, processors()),  # more would be slower, and torch warns
                pin=self.device.type == "cuda",
            )
            for step in range(first, phase.steps):
                count = len(list(micro_batches(phase, step)))
                yield [batch.to(self.device) for batch in islice(batches, count)]
            begin += phase.steps

    def _stream(self, index: int, starts: list[int]) -> BatchStream:
        """Training rows of a phase; phases of one length see other pairs and masks."""
        phase = self.config.train.phases[index]
        return BatchStream.create(
            self.store,
            "train",
            pairs=self.config.pairs,
            masking=self.config.masking,
            length=phase.length,
            batch_size=phase.batch_size,
            seed=self.config.train.seed ^ (index << 48),
            cache=self.run.directory / "plans",
            starts=starts,
            mixture=self.mixture,
        )

    def _phase(self, step: int) -> tuple[int, int]:
        """Index of the phase that update ``step`` (from 1) belongs to, and the updates of the phases before it."""
        begin = 0
        for index, phase in enumerate(self.config.train.phases):
            if step <= begin + phase.steps:
                return index, begin
            begin += phase.steps
        raise AssertionError(f"update {step} of {self.total}")

    def way(self, step: int) -> float:
        """Share of the run that ``step`` updates are, in updates or in room for tokens."""
        if self.config.train.schedule.over == "updates":
            return step / self.total
        index, begin = self._phase(max(step, 1))
        phase = self.config.train.phases[index]
        return (self._room[index] + phase.length * phase.rows_before(step - begin)) / self._room[-1]

    def is_boundary(self, step: int) -> bool:
        """Whether a phase ends with update ``step``."""
        index, begin = self._phase(step)
        return step == begin + self.config.train.phases[index].steps

    def evaluate(self, step: int, before_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Scores on the held-out rows at the length of the phase that update ``step`` belongs to.

        The weights are kept in ``best/`` when their masked-word loss is the lowest of their phase's length so far: at
        another length it cannot be compared. One that is no number is never the best.
        """
        length = self.config.train.phases[self._phase(step)[0]].length
        predictions = predict_heldout(
            self.model,
            heldout_stream(self.store, self.config, length),
            max_rows=self.config.evaluate.max_rows,
            precision=self.precision,
            before_batch=before_batch,
            shown=self._progress,
        )
        scores = heldout_scores(predictions) | breakdown(predictions, self.store.unigram)
        best, loss = self.best, scores["mlm_loss"]
        if math.isfinite(loss) and (best is None or best["length"] != length or loss < best["mlm_loss"]):
            self.best = {"step": step, "length": length, "mlm_loss": loss}
            weights = copied(self.model.state_dict())
            self._later(partial(write_weights, self.run.directory / BEST, step, weights, self.state(step)))
        self.watch(step, scores)
        return scores

    def introduce(self, board: Board) -> None:
        """Configuration, corpus, graph, and what the losses are to be measured by."""
        rule, majority = self.config.pairs.rule, None
        if rule != "none":
            plans = heldout_stream(self.store, self.config, self.config.train.phases[0].length).plans
            label = pair_labels(plans.epoch(0)[: self.config.evaluate.max_rows], rule)
            majority = max(float(label.mean()), 1 - float(label.mean()))
        introduce(board, self.config, self.store, majority)

    def show(self, board: Board, step: int) -> None:
        """What the model says of fixed held-out sentences."""
        if self._samples is None:
            tokenizer, positions = load_tokenizer(self.run.tokenizer), self.config.model.max_position_embeddings
            found = masked_sentences(tokenizer, self.store, count=_SENTENCES, positions=positions)
            self._samples = tokenizer, list(found)
        tokenizer, sentences = self._samples
        samples = fill(self.model, tokenizer, sentences, top=_TOP)
        board.heldout_text("heldout/sentences", samples_table(samples), step)

    def state(self, step: int) -> dict[str, Any]:
        """Rows before each epoch of each phase so far, and the facts by which the weights can be read."""
        index, begin = self._phase(step)
        # Workers plan in their own processes: make sure that this one knows the epochs up to here.
        self._streams[index].plans.locate(self.config.train.phases[index].rows_before(step - begin))
        return {
            "starts": [list(stream.plans.starts) for stream in self._streams],
            "best": self.best,
            "model": plain(self.config.model),
            "vocab_size": self.store.vocab_size,
            "nsp": self.config.pairs.rule != "none",
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self.best = state["best"]
        self._streams = [self._stream(index, list(starts)) for index, starts in enumerate(state["starts"])]

    def shown(self, values: Mapping[str, float]) -> dict[str, str]:
        """MLM loss, speed and NSP accuracy."""
        shown = {"mlm": f"{values['mlm_loss']:.3f}", "tokens/s": f"{values['tokens_per_second']:,.0f}"}
        return shown | ({"nsp": f"{values['nsp_accuracy']:.1%}"} if "nsp_accuracy" in values else {})


def heldout_stream(store: TokenStore, config: Config, length: int) -> BatchStream:
    """The fixed rows and masks of an evaluation; they do not depend on the run's seed, masking, weights or curriculum.

    15% with 80/10/10 whatever training does: otherwise losses cannot be compared between runs.
    """
    return BatchStream.create(
        store,
        "heldout",
        pairs=config.pairs.model_copy(update={"curriculum_epochs": 0}),  # else the first rows are the shortest
        masking=type(config.masking)(),
        length=length,
        batch_size=config.evaluate.batch_size,
        seed=EVALUATION_SEED,
    )


def pretrain(
    config: Config,
    *,
    initial: InitialWeights | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = say_stderr,
    progress: bool = True,
) -> Run:
    """Train the model of a configuration, or go on with the run of its name.

    Where launchers have set WORLD_SIZE and the like, this process and the others train together.

    Args:
        config: the configuration.
        initial: the weights that ``model.init_from`` names (``interop.continuing.pretrain`` reads them).
        overwrite: start again where a run of that name is.
        say: gets lines for people.
        progress: show progress on stderr.

    Returns:
        The run, trained to its last update.

    Raises:
        RequestError: inputs are missing (names the command that makes them), or the run's directory
            holds another configuration.
        Stopped: interrupted after saving.
        Told: another process of the same training says what is wrong.
    """
    with joined() as ranks:
        if not ranks.is_main:
            say, progress = _say_nothing, False
        return _pretrain(config, initial, ranks, overwrite=overwrite, say=say, progress=progress)


def _say_nothing(line: str) -> None:
    pass


def _pretrain(
    config: Config,
    initial: InitialWeights | None,
    ranks: Ranks,
    *,
    overwrite: bool,
    say: Callable[[str], None],
    progress: bool,
) -> Run:
    there = weights_are_gone(config) if initial is None and not overwrite else None
    place = finished_store(config) if there is None else trained_store(config, there.facts["store"])
    store = TokenStore.open(place)
    if ranks.is_main:  # one reads it all
        check_hashes(store.directory, store.manifest)
    check_pairs(store.manifest, config.pairs.rule)
    # These refuse before anything is written.
    choose_precision(config.train.precision, choose_device(config.train.device, ranks.world))
    for index, phase in enumerate(config.train.phases):
        check_shares(f"train.phases.{index}", phase, ranks.size)
    tokenizer = tokenizer_dir(config) if there is None else there.tokenizer
    facts = {"store": store.manifest["fingerprint"], "tokenizer": store.manifest["inputs"].get("tokenizer")}
    if there is not None:
        config = config.model_copy(update={"model": with_keys(there.config.model, config.model)})
        facts["initial"] = there.facts["initial"]
    elif initial is not None or config.model.init_from is not None:
        config = checked_start(config, initial, load_tokenizer(tokenizer))
        facts |= {} if initial is None else {"initial": initial.fingerprint()}
    with contextlib.ExitStack() as held:
        if ranks.is_main:
            run = held.enter_context(opened_alone(config, facts, tokenizer, overwrite=overwrite, say=say))
        else:
            run = Run(run_path(config), config, facts)
        ranks.together()  # its directory is there
        _train(run, store, initial, ranks, say, progress)
        ranks.together()  # the last checkpoint is written
    return run


def _train(
    run: Run,
    store: TokenStore,
    initial: InitialWeights | None,
    ranks: Ranks,
    say: Callable[[str], None],
    progress: bool,
) -> None:
    device = choose_device(run.config.train.device, ranks.world)
    precision = choose_precision(run.config.train.precision, device)
    _log.debug("%s: %s, %s, loader processes: %d", run.directory, device, precision, run.config.train.workers)
    run = replace(
        run,
        config=with_micro_batches(
            run.config, store.vocab_size, cast(Objective, pretraining_objective), device, precision, ranks, say
        ),
    )
    writer = Writer()
    work = PreTraining(run, store, device, precision, writer.submit, ranks, progress=progress)
    if initial is not None and not checkpoints(run.directory):
        for line in start_from(work.model, initial, load_tokenizer(run.tokenizer)):
            say(line)
    loop = Loop(run.directory, work, run.config.train, precision=precision, say=say, writer=writer, ranks=ranks)
    if loop.finished:
        say(f"{run.directory}: finished ({work.total} updates); nothing to do")
        return
    entropy = unigram_entropy(store_unigrams(store))
    several = f" in {ranks.size} processes" if ranks.size > 1 else ""
    say(
        f"{run.directory}: {sum(p.numel() for p in work.model.parameters()):,} parameters on {device}{several},"
        f" {len(store.train.ids):,} tokens; a model without context ends near the unigram entropy {entropy:.2f} nats"
    )
    work.watch = Watch(run.directory, run.config, store, say)
    with _named_worker_faults():
        loop.train("pretrain", progress=progress)


@contextlib.contextmanager
def _named_worker_faults() -> Iterator[None]:
    """Torch raises a plain RuntimeError when a loader process is gone.

    One that is killed while its tensors are fetched shows as the end of a connection.
    """
    try:
        yield
    except (RuntimeError, EOFError, ConnectionError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise BertptError(
            "a loader process has died (killed, perhaps for want of memory); the same command goes on from the last"
            " checkpoint, with fewer of them after --set train.workers=0"
        ) from error

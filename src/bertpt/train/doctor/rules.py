"""What the log of a run shows, fault by fault: pure functions of the evidence.

Numbers that decide are constants here, each with its reason. They were set on recorded runs, healthy and with one fault
each (``scripts/record_doctor_fixtures.py``). A slow test records others, of other seeds, and judges those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Literal

from bertpt.config.schema import Model, Phase, Train
from bertpt.train.doctor.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        name: by which programs know it.
        kind: ``fault`` costs the result or much of the time; ``note`` is good to know.
        what, evidence, why, advice: a sentence each, for people.
    """

    name: str
    kind: Literal["fault", "note"]
    what: str
    evidence: str
    why: str
    advice: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        parts = (("seen", self.evidence), ("why", self.why), ("do", self.advice))
        return [f"{self.kind} {self.name}: {self.what}", *(f"  {title + ':':<6}{text}" for title, text in parts)]


# A mean of logged losses this far under the unigram entropy shows context; the recorded plateaus stayed within 0.1.
CONTEXT = 0.15
# So far above the unigram entropy a model does not even know how frequent words are.
UNLEARNT = 0.3
PAIRS_CHANCE, PAIRS_LEARNT = 0.69, 0.6  # nats; a coin has 0.693, and 0.68 who knows that 58% of the labels are equal
FEWEST_LINES = 5  # of the log, before anything is said of how it learns
# Updates after which the plateau near the unigram entropy is behind a run that will leave it: 4,000 to 8,000 of 16 rows
# (2 layers), about 7,500 of 32 rows (24 layers) were seen.
PLATEAU_UPDATES = 20_000


def learning_faults(evidence: Evidence) -> list[Finding]:
    """Whether and what the run learns. At most one of the causes that exclude each other is named."""
    broken = _not_finite(evidence)
    if len(evidence.train) < FEWEST_LINES or evidence.step <= evidence.warmup:
        return [_just_begun(evidence)] if broken is None else [broken]
    found = [finding for finding in (broken, _exploding(evidence), _dead(evidence)) if finding is not None]
    causes = () if found else (_masks_off, _diverged, _unlearnt, _on_plateau)
    found += [finding for rule in causes if (finding := rule(evidence)) is not None][:1]
    return found + [
        finding for rule in (_pairs_leak, _sources_tell, _pairs_at_chance) if (finding := rule(evidence)) is not None
    ]


# --- figures --------------------------------------------------------------------------------------------------


def usual_rates(model: Model, train: Train) -> tuple[float, float]:
    """Peak rates, least and most, that runs of about this size were trained well with.

    AdamW, layers normalised after the sum: 2e-3 for 2x128 (ours), 5e-4 for 4x256 to 8x512 (ELECTRA-small, ours), 1e-4
    to 5e-4 for 12x768 (BERT, RoBERTa with 256 to 2,048 rows), 1e-4 to 4e-4 for 24x1024: about
    1e-3 * sqrt(512 / (layers * width)). More rows bear more, by the root; LAMB ten times as much.
    """
    middle = 1e-3 * math.sqrt(512 / (model.num_hidden_layers * model.hidden_size))
    rows = max(phase.batch_size for phase in train.phases)
    most = 5 * middle * max(1.0, math.sqrt(rows / 2048))
    least = middle / 20
    return (10 * least, 10 * most) if train.optimizer.kind == "lamb" else (least, most)


def _loss(evidence: Evidence) -> float:
    return evidence.mean("mlm_loss")


def _heldout(evidence: Evidence, name: str) -> list[tuple[int, float]]:
    return [(entry["step"], entry[name]) for entry in evidence.heldout if entry.get(name) is not None]


def _levels(evidence: Evidence) -> str:
    text = evidence.text
    return f"unigram entropy {text.entropy:.2f}, ln V {math.log(text.vocab_size):.2f}"


def _now(evidence: Evidence) -> str:
    return f"masked-word loss {_loss(evidence):.2f} over the last fifth of the log ({_levels(evidence)})"


def _progress(evidence: Evidence) -> str:
    return f"update {evidence.step:,} of {evidence.total:,}"


# --- how it learns --------------------------------------------------------------------------------------------


def _just_begun(evidence: Evidence) -> Finding:
    return Finding(
        "just-begun",
        "note",
        "too early to say how it learns",
        f"{_progress(evidence)}, {len(evidence.train)} lines of training in the log, warm-up of {evidence.warmup:,}",
        f"at least {FEWEST_LINES} lines after the warm-up are looked at",
        "ask again later; a smaller train.log_every gives more lines",
    )


def _not_finite(evidence: Evidence) -> Finding | None:
    """Skipped updates: more than 1% of all; fp16, which finds its scale by skipping, needs fewer."""
    skipped = max(evidence.values("skipped", 0, 1), default=0)
    lost = sum(entry.get("mlm_loss") is None for entry in evidence.train)
    if skipped <= 0.01 * evidence.step and not lost:
        return None
    return Finding(
        "not-finite",
        "fault",
        "losses or gradients are no finite numbers",
        f"{skipped:,.0f} of {evidence.step:,} updates were left out; {lost} logged losses are no number",
        "the numbers grow beyond what the precision holds, or some rows or weights are broken",
        "lower train.optimizer.lr, lengthen train.schedule.warmup_steps, set train.clip: 1.0 and train.precision: fp32;"
        " `bertpt inspect checkpoint` looks for NaN in the weights",
    )


def _exploding(evidence: Evidence) -> Finding | None:
    """Norms of 0.1 to 20 are usual, before clipping; they fall in the first updates."""
    norms = evidence.values("gradient_norm", 0.1, 1)
    usual = median(norms) if norms else 0.0
    if usual < 50:
        return None
    return Finding(
        "gradients-explode",
        "fault",
        "the gradients are far too large",
        f"median norm {usual:,.0f}, largest {max(norms):,.0f}; train.clip {evidence.config.train.clip:g},"
        f" initializer_range {evidence.config.model.initializer_range:g}",
        "too large initial weights, or a rate that has driven the weights apart; clipping then keeps a direction only",
        "set model.initializer_range: 0.02 (0.05 for widths near 128), train.clip: 1.0, and a lower train.optimizer.lr",
    )


def _dead(evidence: Evidence) -> Finding | None:
    """Norms below 1e-3, when nothing of the context is learnt: healthy runs stay above 0.05 to their end."""
    norms = evidence.values("gradient_norm", 0.5, 1)
    usual = median(norms) if norms else math.inf
    if usual > 1e-3 or _loss(evidence) < evidence.text.entropy - CONTEXT:
        return None
    return Finding(
        "gradients-dead",
        "fault",
        "hardly any gradient arrives",
        f"median norm {usual:.1e} in the second half; {_now(evidence)}",
        "the loss is scaled away (underflow, a division too many), or most of the model has no path to the loss",
        "set train.precision: fp32; after changes of the code, look at the gradient of each parameter of one batch",
    )


def _masks_off(evidence: Evidence) -> Finding | None:
    """Training far better than held-out rows, before the text can be known by heart (20 passes)."""
    heldout = _heldout(evidence, "mlm_accuracy")
    if not heldout or _passes(evidence) > 20:
        return None
    ours, theirs = evidence.mean("mlm_accuracy"), heldout[-1][1]
    if ours < theirs + 0.3:
        return None
    masking = evidence.config.masking
    return Finding(
        "masks-off",
        "fault",
        "in training the answers can be seen",
        f"masked words right: {ours:.0%} in training, {theirs:.0%} held out, after {_passes(evidence):.1f} passes over"
        f" the text; mask_share {masking.mask_share:g}, random_share {masking.random_share:g}",
        "the predicted words stand unmasked in the rows, so they are copied and nothing is learnt",
        "set masking.mask_share: 0.8 and random_share: 0.1; read the rows with `bertpt inspect pairs`",
    )


def _passes(evidence: Evidence) -> float:
    """How often the text has been read, at most: rows are taken as full."""
    read, left = 0.0, evidence.step
    for phase in evidence.config.train.phases:
        read += phase.rows_before(min(left, phase.steps)) * phase.length
        left -= min(left, phase.steps)
    return read / max(evidence.text.tokens, 1)


def _diverged(evidence: Evidence) -> Finding | None:
    """The loss rose again, and stayed: by more than 0.3 nats over the lowest tenth of the log."""
    tenths = [evidence.mean("mlm_loss", i / 10, (i + 1) / 10) for i in range(10)]
    best, now = min(value for value in tenths if value == value), evidence.mean("mlm_loss", 0.9, 1)
    if now < best + 0.3:
        return None
    return _too_fast(evidence, f"the loss rose from {best:.2f} to {now:.2f} ({_levels(evidence)})")


def _too_fast(evidence: Evidence, seen: str) -> Finding:
    """A rate too high, or a warm-up too short for it; by the settings."""
    train, (_, most) = evidence.config.train, usual_rates(evidence.config.model, evidence.config.train)
    rate, share = train.optimizer.lr, evidence.warmup / evidence.total
    shape = f"{evidence.config.model.num_hidden_layers}x{evidence.config.model.hidden_size}"
    seen += f"; peak rate {rate:g}, warm-up {evidence.warmup:,} of {evidence.total:,} updates"
    if share < 0.01 and rate <= most:
        return Finding(
            "warmup-too-short",
            "fault",
            "the run was thrown off its way in the first updates",
            seen,
            "layers that are normalised after the sum need small steps at first, the more so the deeper the model",
            f"set train.schedule.warmup_ratio: {0.1 if evidence.config.model.num_hidden_layers >= 6 else 0.06}",
        )
    return Finding(
        "rate-too-high",
        "fault",
        "the learning rate is too high",
        seen,
        f"models of {shape} were trained well with peaks up to about {most:.1g}; above, the updates undo each other",
        f"set train.optimizer.lr: {min(rate / 3, most / 3):.1g}",
    )


def _unlearnt(evidence: Evidence) -> Finding | None:
    """Above the unigram entropy long after the warm-up: not even the frequencies of the words are learnt."""
    if _loss(evidence) < evidence.text.entropy + UNLEARNT or not _late(evidence, 2_000):
        return None
    train, (least, most) = evidence.config.train, usual_rates(evidence.config.model, evidence.config.train)
    seen = f"{_now(evidence)} at {_progress(evidence)}; peak rate {train.optimizer.lr:g}"
    if train.optimizer.lr > most:
        return _too_fast(evidence, seen)
    if train.optimizer.lr < least or _falls(evidence):
        return Finding(
            "rate-too-low",
            "fault",
            "the learning rate is too low",
            seen,
            f"the loss still falls towards the frequencies of the words; peaks from about {least:.1g} to {most:.1g} are"
            " usual for this size",
            f"set train.optimizer.lr: {math.sqrt(least * most):.1g}, or give the run more updates (train.phases)",
        )
    return Finding(
        "labels-off",
        "fault",
        "the masked words cannot be learnt, not even by their frequency",
        seen,
        "the labels are no words of this text: another tokenizer, another vocabulary, or labels of other rows",
        "compare the rows of `bertpt inspect pairs` with their labels, and the run's tokenizer with the corpus's",
    )


def _falls(evidence: Evidence) -> bool:
    """Whether the loss still falls: by 0.05 nats from the second to the last quarter."""
    return evidence.mean("mlm_loss", 0.25, 0.5) - evidence.mean("mlm_loss", 0.75, 1) > 0.05


def _late(evidence: Evidence, updates: int) -> bool:
    """Whether there is no more to wait for: at the end, or so many updates after the warm-up."""
    return evidence.step >= 0.98 * evidence.total or evidence.step > evidence.warmup + updates


def _on_plateau(evidence: Evidence) -> Finding | None:
    """At the unigram entropy: frequencies are learnt and nothing of the context."""
    if _loss(evidence) < evidence.text.entropy - CONTEXT:
        return None
    train, (_, most) = evidence.config.train, usual_rates(evidence.config.model, evidence.config.train)
    seen = f"{_now(evidence)} at {_progress(evidence)}"
    if not _late(evidence, PLATEAU_UPDATES):
        return Finding(
            "plateau",
            "note",
            "only the frequencies of the words are learnt so far",
            seen,
            "every BERT stays near the unigram entropy for a while, 4,000 to 8,000 updates were seen, and leaves it"
            " suddenly",
            f"wait; if it is still there after {PLATEAU_UPDATES:,} updates, something is wrong",
        )
    if train.optimizer.lr > most:
        return _too_fast(evidence, seen)
    if evidence.mean("nsp_loss") < PAIRS_LEARNT:
        return Finding(
            "labels-off",
            "fault",
            "the masked words cannot be told by their context",
            f"{seen}, while {evidence.mean('nsp_accuracy'):.0%} of the pairs are right",
            "the model reads (pairs show it), but the labels of the masked words are not those of their places",
            "compare the rows of `bertpt inspect pairs` with their labels",
        )
    if evidence.warmup < 0.01 * evidence.total and evidence.config.model.num_hidden_layers >= 4:
        return _too_fast(evidence, seen)
    return Finding(
        "plateau",
        "fault",
        "nothing of the context was learnt",
        seen,
        "too few updates for this rate and batch, weights too small at the start (narrow models need more than 0.02),"
        " or labels that are not those of their places",
        "give it more updates (train.phases), a higher train.optimizer.lr, or for widths near 128"
        " model.initializer_range: 0.05; look at rows and labels with `bertpt inspect pairs`",
    )


# --- pairs ----------------------------------------------------------------------------------------------------


def _pairs_leak(evidence: Evidence) -> Finding | None:
    """Pairs solved (95%) in a stretch of the log where words are still told by frequency: no reading is needed."""
    for tenth in range(10):
        pairs, loss = (evidence.mean(name, tenth / 10, (tenth + 1) / 10) for name in ("nsp_accuracy", "mlm_loss"))
        if pairs >= 0.95 and loss > evidence.text.entropy - CONTEXT:
            break
    else:
        return None
    return Finding(
        "pairs-leak",
        "fault",
        "the pairs are solved without reading",
        f"{pairs:.0%} of the pairs right in tenth {tenth + 1} of the log, at a masked-word loss of {loss:.2f}"
        f" ({_levels(evidence)})",
        "something gives the label away: lengths, segment ids, or sources that look unlike each other",
        "read pairs of both labels with `bertpt inspect pairs`; with several sources set pairs.random_from: source",
    )


def _pairs_at_chance(evidence: Evidence) -> Finding | None:
    """Next-sentence pairs at chance although words are read: 1.6 nats under the unigrams.

    Healthy runs left chance by 1.44 under them at the latest, those with this fault ended 1.7 to 2.1 under. Two
    languages mixed are 0.7 under them as soon as they are told apart. By the loss: accuracy hangs on which label is
    more frequent. The order of sentences takes longer: not judged.
    """
    if evidence.config.pairs.rule != "next" or not _loss(evidence) < evidence.text.entropy - 1.6:
        return None
    if not evidence.mean("nsp_loss") > PAIRS_CHANCE:
        return None
    under = evidence.text.entropy - _loss(evidence)
    return Finding(
        "pairs-at-chance",
        "fault",
        "the pairs are told no better than by a coin",
        f"{evidence.mean('nsp_accuracy'):.0%} right, loss {evidence.mean('nsp_loss'):.3f} (chance: {math.log(2):.3f}),"
        f" with a masked-word loss {under:.2f} nats under the unigram entropy; nsp_weight"
        f" {evidence.config.train.nsp_weight:g}",
        "their loss has no weight, or their labels do not belong to the rows",
        "set train.nsp_weight: 1.0; compare pairs and labels with `bertpt inspect pairs`, or set pairs.rule: none",
    )


def _sources_tell(evidence: Evidence) -> Finding | None:
    """Knowing the sources of both halves alone beats the more frequent label by 5 points (`bertpt eval` tells).

    Of two equal sources and a share r of random halves it is 1 - 1.5 r: 25 points for long documents, 10 where every
    fifth half is random for want of a next sentence (r = 0.6). With halves from A's own source it is 0.
    """
    detector, majority = (evidence.baselines.get(f"{name}_accuracy") for name in ("source_detector", "majority"))
    if detector is None or majority is None or detector < majority + 0.05:
        return None
    return Finding(
        "pairs-leak",
        "fault",
        "the sources of the halves give the label of many pairs away",
        f"whoever knows the sources alone has {detector:.0%} right, by the more frequent label {majority:.0%}",
        "random halves come from all sources, true ones from A's own, and texts of unlike sources are told at a glance",
        "set pairs.random_from: source",
    )


# --- text and time --------------------------------------------------------------------------------------------


def _overfitting(evidence: Evidence) -> Finding | None:
    """The held-out loss rose by 0.1 nats over its lowest, twice, while that of training fell."""
    losses = _of_last_phase(evidence)
    if len(losses) < 3:
        return None
    step, best = min(losses, key=lambda pair: pair[1])
    after = [value for at, value in losses if at > step]
    if len(after) < 2 or min(after[-2:]) < best + 0.1:
        return None
    before = [entry for entry in evidence.train if entry["step"] <= step and entry.get("mlm_loss") is not None][-5:]
    if not before or _loss(evidence) > sum(entry["mlm_loss"] for entry in before) / len(before) - 0.1:
        return None
    return Finding(
        "overfitting",
        "fault",
        "the text is learnt by heart",
        f"held-out loss {best:.2f} at update {step:,}, {after[-1]:.2f} now; training {_loss(evidence):.2f};"
        f" {_passes(evidence):.0f} passes over {evidence.text.tokens:,} tokens",
        "a small text is read too often",
        f"end the run near update {step:,} (best/ holds its weights), add text, or take a smaller model with"
        " model.hidden_dropout_prob: 0.1",
    )


def _of_last_phase(evidence: Evidence) -> list[tuple[int, float]]:
    """Held-out losses at the present length: others cannot be compared."""
    _, begin = _phase(evidence)
    return [(step, loss) for step, loss in _heldout(evidence, "mlm_loss") if step > begin]


def _phase(evidence: Evidence) -> tuple[Phase, int]:
    """The phase that the last update belongs to, and the updates before it."""
    begin, phases = 0, evidence.config.train.phases
    for phase in phases[:-1]:
        if evidence.step <= begin + phase.steps:
            return phase, begin
        begin += phase.steps
    return phases[-1], begin


def _copies(evidence: Evidence) -> Finding | None:
    """A tenth of the documents, or three tenths of the lines (headings repeat in any corpus)."""
    documents, lines = evidence.text.copies_share, evidence.text.repeated_lines_share
    if (documents or 0) < 0.1 and (lines or 0) < 0.3:
        return None
    return Finding(
        "copies",
        "fault",
        "the text repeats itself",
        f"{documents or 0:.0%} of the documents and {lines or 0:.0%} of the lines repeat another one word for word",
        "what stands there often is learnt by heart, at the cost of the rest",
        "set corpus.deduplicate: documents (or near-duplicates) and corpus.max_line_documents: 20",
    )


def _unknown(evidence: Evidence) -> Finding | None:
    share = evidence.text.unknown_share
    if share < 0.01:
        return None
    return Finding(
        "unknown-words",
        "fault",
        "the vocabulary does not know the text",
        f"{share:.1%} of the training tokens are [UNK]",
        "letters that the vocabulary lacks (another language, an old vocab.txt), or words of more than 100 letters",
        "look at `bertpt inspect tokenizer`; leave tokenizer.from out, so that a vocabulary is trained on this text",
    )


def _padding(evidence: Evidence) -> Finding | None:
    """Rows filled by less than half, or batches, as wide as their longest row, of which more than half is padding."""
    phase, begin = _phase(evidence)
    lines = [entry for entry in evidence.train if entry["step"] > begin]
    if not lines:
        return None
    padding = fmean(entry["padding_share"] for entry in lines)
    tokens = fmean(entry["tokens_per_second"] / entry["rows_per_second"] for entry in lines)
    if padding <= 0.5 and tokens >= 0.5 * phase.length:
        return None
    return Finding(
        "padding",
        "fault",
        "most rows are far shorter than they might be",
        f"{tokens:.0f} tokens a row at length {phase.length}; {padding:.0%} of the batches is padding",
        "documents are short: far positions are hardly trained, and an update has fewer tokens than its rows suggest",
        f"set a length near {_fitting(tokens)} (train.phases), or join short documents (documents: group); a larger"
        " batch_size makes up for the tokens",
    )


def _fitting(length: float) -> int:
    """A multiple of 16 that holds most rows of a mean length."""
    return max(16, 16 * math.ceil(1.25 * length / 16))


def _data_bound(evidence: Evidence) -> Finding | None:
    waits = evidence.values("data_wait_share", 0.2, 1)
    if len(waits) < FEWEST_LINES or median(waits) < 0.2:  # the first lines hold the start-up
        return None
    return Finding(
        "data-bound",
        "fault",
        "training waits for its data",
        f"{median(waits):.0%} of the time of an update; train.workers {evidence.config.train.workers}",
        "rows are read and masked more slowly than the model trains on them: too few loader processes, or a slow disk",
        f"set train.workers: {max(2, 2 * evidence.config.train.workers)}, and put data_dir on a local disk",
    )


OTHER_RULES: Sequence[Callable[[Evidence], Finding | None]] = (_overfitting, _copies, _unknown, _padding, _data_bound)


def diagnose(evidence: Evidence) -> list[Finding]:
    """All that the evidence shows, faults first."""
    found = learning_faults(evidence)
    found += [finding for rule in OTHER_RULES if (finding := rule(evidence)) is not None]
    if any(finding.name == "masks-off" for finding in found):
        # What is copied is not learnt by heart, and a low loss of words that stand there is no sign of reading.
        found = [finding for finding in found if finding.name not in ("overfitting", "pairs-at-chance")]
    return sorted(found, key=lambda finding: finding.kind != "fault")

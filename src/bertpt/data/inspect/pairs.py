"""``bertpt inspect pairs``: the rows that the model is trained on, as text and as figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertpt.config import Config
from bertpt.data.inspect.layout import Bucket, bars, histogram, paragraph, sections
from bertpt.data.locate import finished_store, tokenizer_dir
from bertpt.data.random import bits
from bertpt.data.rows.baselines import document_of
from bertpt.data.rows.loader import PackedRows, gather, masked_rows, masker_for
from bertpt.data.rows.masking import max_predictions
from bertpt.data.rows.mixture import Mixture, mixture_of, repeats
from bertpt.data.rows.plan import PAIR_WORDS, pair_labels, plan_epoch
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer, load_tokenizer
from bertpt.data.tokens.paircheck import check_pairs
from bertpt.data.tokens.store import Tokens, TokenStore
from bertpt.progress import counted

MAX_DOCUMENTS = 50_000
MASKED_ROWS = 20_000  # rows that are masked for the statistics
_FEWEST = 50  # documents of each source, where it has as many
_ORDER = 0x696E7370  # 'insp': a stream apart from those of training

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A position that is predicted: what stood there, what stands there now."""

    position: int
    original: str
    shown: str
    kind: str


@dataclass(frozen=True, slots=True)
class Example:
    """One row as the model gets it."""

    row: int
    label: str | None
    source_a: str
    source_b: str | None
    text: str
    tokens: list[str]
    segments: list[int]
    predictions: list[Prediction]


@dataclass(frozen=True, slots=True)
class MaskFigures:
    """What became of the maskable tokens of some rows; shares from 0 to 1."""

    rows: int
    rate: float
    masked_share: float
    random_share: float
    kept_share: float
    fewest: int
    mean: float
    most: int
    cap: int
    runs: dict[str, float]


@dataclass(frozen=True, slots=True)
class RowFigures:
    """The rows of one epoch at one length."""

    length: int
    rows: int
    mean_tokens: float
    mean_fill: float
    full_share: float
    random_share: float | None
    swapped_share: float | None
    documents_without_row: int
    tokens_by_source: dict[str, float]
    mean_a: float
    mean_b: float | None
    tokens_per_row: list[Bucket]
    masks: MaskFigures
    examples: list[Example]


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The rows of a configuration."""

    directory: str
    rule: str
    documents: int
    of_documents: int
    repeats: dict[str, float] | None
    settings: dict[str, Any]
    lengths: list[RowFigures]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        value = asdict(self)
        for plain, figures in zip(value["lengths"], self.lengths, strict=True):
            plain["tokens_per_row"] = [bucket._asdict() for bucket in figures.tokens_per_row]
        return value

    def lines(self) -> list[str]:
        """For people."""
        return list(sections(_parts(self)))


def inspect_pairs(
    config: Config, *, lengths: Sequence[int] = (), samples: int = 3, seed: int = 0, max_documents: int = MAX_DOCUMENTS
) -> PairFigures:
    """Plan and mask the training rows of the first epoch, as ``bertpt pretrain`` does.

    Args:
        config: all but the model is used; ``train.seed`` decides on pairs and masks.
        lengths: of the rows; those of ``train.phases`` by default.
        samples: how many rows of each length are shown.
        seed: chooses them.
        max_documents: of a larger store, so many documents (spread evenly over it, some of each source) stand for
            all; then the rows are like those of training, not the same.

    Raises:
        RequestError: the store is not there, or cannot give such rows.
    """
    store = TokenStore.open(finished_store(config))
    check_pairs(store.manifest, config.pairs.rule)
    tokenizer = load_tokenizer(tokenizer_dir(config))
    tokens = spread(store.train, max_documents)
    mixture = mixture_of(config.corpus, store.source_labels)
    chosen = dict.fromkeys(lengths or [phase.length for phase in config.train.phases])
    return PairFigures(
        directory=str(store.directory),
        rule=config.pairs.rule,
        documents=len(tokens.documents) - 1,
        of_documents=len(store.train.documents) - 1,
        repeats=None
        if mixture is None
        else dict(zip(store.source_labels, repeats(store.train, mixture).tolist(), strict=True)),
        settings={"pairs": config.pairs.model_dump(), "masking": config.masking.model_dump()},
        lengths=[_Rows(config, store, tokens, mixture, tokenizer, length).figures(samples, seed) for length in chosen],
    )


def spread(tokens: Tokens, most: int) -> Tokens:
    """About ``most`` documents spread evenly over a split, at least some of each source; all when there are fewer."""
    total = len(tokens.documents) - 1
    if total <= most:
        return tokens
    sources = np.asarray(tokens.sources)
    picked: list[I64] = []
    for source in np.unique(sources):
        own = np.flatnonzero(sources == source)
        count = min(len(own), max(_FEWEST, round(most * len(own) / total)))
        picked.append(own[np.linspace(0, len(own) - 1, count).astype(np.int64)])
    chosen = np.sort(np.concatenate(picked))
    first, last = np.asarray(tokens.documents)[chosen], np.asarray(tokens.documents)[chosen + 1]
    starts, ends = np.asarray(tokens.document_starts)[chosen], np.asarray(tokens.document_starts)[chosen + 1]
    return Tokens.build(
        np.concatenate([tokens.ids[a:b] for a, b in zip(starts, ends, strict=True)]),
        np.concatenate([tokens.lengths[a:b] for a, b in zip(first, last, strict=True)]),
        last - first,
        sources[chosen],
    )


class _Rows:
    """The rows of the first epoch at one length."""

    def __init__(
        self,
        config: Config,
        store: TokenStore,
        tokens: Tokens,
        mixture: Mixture | None,
        tokenizer: WordPieceTokenizer,
        length: int,
    ) -> None:
        self.config, self.store, self.tokens, self.tokenizer, self.length = config, store, tokens, tokenizer, length
        self.masker = masker_for(store, config.masking)
        self.rule, self.seed = config.pairs.rule, config.train.seed
        self.rows = plan_epoch(tokens, config.pairs, length=length, seed=self.seed, epoch=0, mixture=mixture)
        self.labels = pair_labels(self.rows, self.rule)

    def figures(self, samples: int, seed: int) -> RowFigures:
        """All of it."""
        rows, paired = self.rows, self.rule != "none"
        sizes = rows["a_length"].astype(np.int64) + rows["b_length"] + np.where(rows["b_length"] > 0, 3, 2)
        step = max(1, self.length // 8)
        return RowFigures(
            length=self.length,
            rows=len(rows),
            mean_tokens=float(sizes.mean()),
            mean_fill=float(sizes.mean()) / self.length,
            full_share=float((sizes == self.length).mean()),
            random_share=float(self.labels.mean()) if self.rule == "next" else None,
            swapped_share=float(self.labels.mean()) if self.rule == "order" else None,
            documents_without_row=self._without_row(),
            tokens_by_source=self._by_source(),
            mean_a=float(rows["a_length"].mean()),
            mean_b=float(rows["b_length"].mean()) if paired else None,
            tokens_per_row=histogram(sizes, [1, *range(step, self.length, step), self.length], self.length),
            masks=self._masks(),
            examples=[self._example(int(row)) for row in self._choice(samples, seed)],
        )

    def _choice(self, samples: int, seed: int) -> I64:
        """Places of the rows to show, as many of either label among them where there are both."""
        order = np.argsort(bits(seed, _ORDER, np.arange(len(self.rows))), kind="stable")
        zero, one = order[~self.labels[order]], order[self.labels[order]]
        both = min(len(zero), len(one))
        turns = np.stack([zero[:both], one[:both]], axis=1).ravel()
        return np.concatenate([turns, zero[both:], one[both:]])[:samples]

    def _without_row(self) -> int:
        """Documents of one sentence that fits a row have no order."""
        if self.rule != "order":
            return 0
        tokens = np.diff(self.tokens.document_starts)
        return int(((np.diff(self.tokens.documents) == 1) & (tokens <= self.length - 3)).sum())

    def _by_source(self) -> dict[str, float]:
        """Share of A's tokens that come from each source."""
        source = self.tokens.sources[document_of(self.tokens, self.rows["a_start"])]
        labels = self.store.source_labels
        tokens = np.bincount(source, self.rows["a_length"], len(labels))
        return dict(zip(labels, (tokens / tokens.sum()).tolist(), strict=True))

    def _masked(self, places: I64) -> tuple[PackedRows, I64, I64, I64]:
        packed = gather(self.tokens, self.rows[places], self.store.special_ids)
        return packed, *masked_rows(self.masker, packed, self.rows[places], self.seed, 0, places, self.length)

    def _masks(self) -> MaskFigures:
        # Spread over the epoch, which a curriculum puts in order of length.
        places = np.linspace(0, len(self.rows) - 1, min(len(self.rows), MASKED_ROWS)).astype(np.int64)
        packed, ids, positions, labels = self._masked(places)
        now = ids[positions]
        row = np.repeat(np.arange(len(places)), packed.lengths)
        count = np.bincount(row[positions], minlength=len(places))
        masked, kept = now == self.masker.mask_id, now == labels
        return MaskFigures(
            rows=len(places),
            rate=len(positions) / max(int((~np.isin(packed.ids, self.masker.special)).sum()), 1),
            masked_share=_share(masked),
            random_share=_share(~masked & ~kept),
            kept_share=_share(kept),
            fewest=int(count.min()),
            mean=float(count.mean()),
            most=int(count.max()),
            cap=max_predictions(self.config.masking.rate, self.length),
            runs=_runs(positions, row[positions]),
        )

    def _example(self, place: int) -> Example:
        packed, ids, positions, labels = self._masked(np.array([place]))
        row = self.rows[place]
        words = PAIR_WORDS.get(self.rule)
        label = words[int(self.labels[place])] if words else None
        token = self.tokenizer.token
        return Example(
            row=place,
            label=label,
            source_a=self._source(int(row["a_start"])),
            source_b=self._source(int(row["b_start"])) if row["b_length"] else None,
            text=self.tokenizer.decode(ids.tolist()),
            tokens=[token(index) for index in ids.tolist()],
            segments=packed.token_types.tolist(),
            predictions=[
                Prediction(position, token(original), token(now), self._kind(original, now))
                for position, original, now in zip(
                    positions.tolist(), labels.tolist(), ids[positions].tolist(), strict=True
                )
            ],
        )

    def _kind(self, original: int, now: int) -> str:
        return "masked" if now == self.masker.mask_id else "kept" if now == original else "random"

    def _source(self, start: int) -> str:
        document = document_of(self.tokens, np.array([start]))[0]
        return self.store.source_labels[int(self.tokens.sources[document])]


def _runs(positions: I64, row: I64) -> dict[str, float]:
    """Shares of the runs of adjacent predicted tokens by their length, those of 5 and more together."""
    ends = np.flatnonzero((np.diff(positions, append=-1) != 1) | (np.diff(row, append=-1) != 0))
    lengths = np.diff(ends, prepend=-1)
    counts = np.bincount(np.minimum(lengths, 5), minlength=6)[1:]
    names = ("1", "2", "3", "4", "5 or more")
    return {name: float(count / max(counts.sum(), 1)) for name, count in zip(names, counts, strict=True) if count}


def _share(flags: NDArray[np.bool_]) -> float:
    """Share of True; 0 of nothing (rows of [UNK] alone have nothing to predict)."""
    return float(flags.mean()) if len(flags) else 0.0


def _parts(figures: PairFigures) -> Iterator[tuple[str, list[str]]]:
    rule = {
        "next": "pairs with next-sentence labels",
        "order": "pairs of segments in order or swapped",
        "none": "rows of one document, without pairs",
    }
    seen = counted(figures.documents, "training documents")
    if figures.documents < figures.of_documents:
        seen += f", spread over all {figures.of_documents:,}: rows like those of training, not the same"
    yield (
        f"{figures.directory}: {rule.get(figures.rule, figures.rule)}",
        [f"  first epoch of {seen}", *_mixed(figures)],
    )
    masking = figures.settings["masking"]
    for rows in figures.lengths:
        yield f"Length {rows.length}: {counted(rows.rows, 'rows')}", [f"  {line}" for line in _row_lines(rows, figures)]
        yield "Tokens in a row, [CLS] and [SEP] included", bars(rows.tokens_per_row)
        yield f"Masks of {counted(rows.masks.rows, 'rows')}", [f"  {line}" for line in _mask_lines(rows.masks, masking)]
        for example in rows.examples:
            yield _title(example), _example_lines(example)


def _mixed(figures: PairFigures) -> Iterator[str]:
    """With weights: how often a document of each source comes, and what that makes of the text."""
    for label, times in (figures.repeats or {}).items():
        share = figures.lengths[0].tokens_by_source[label] if figures.lengths else 0.0
        yield f"  {label}: {times:.2f} times in an epoch, {share:.1%} of the tokens"


def _row_lines(rows: RowFigures, figures: PairFigures) -> Iterator[str]:
    yield (
        f"mean {rows.mean_tokens:.1f} tokens, {rows.mean_fill:.1%} of the length filled; {rows.full_share:.1%} of the"
        " rows are full (padding costs nothing outside attention)"
    )
    if rows.random_share is not None:
        yield (
            f"{rows.random_share:.1%} of the pairs have a random B (pairs.random_share"
            f" {figures.settings['pairs']['random_share']:g}; a document's last sentence has no next one)"
        )
    if rows.swapped_share is not None:
        yield f"{rows.swapped_share:.1%} of the pairs are swapped" + (
            f"; {counted(rows.documents_without_row, 'documents are one sentence, without a row')}"
            if rows.documents_without_row
            else ""
        )
    if rows.mean_b is not None:
        yield f"mean {rows.mean_a:.1f} tokens in A, {rows.mean_b:.1f} in B"


def _mask_lines(masks: MaskFigures, masking: dict[str, Any]) -> Iterator[str]:
    rest = 1 - masking["mask_share"] - masking["random_share"]
    yield (
        f"{masks.rate:.2%} of the maskable tokens are predicted (masking.rate {masking['rate']:g}): {masks.fewest} to"
        f" {masks.most} in a row, mean {masks.mean:.1f}, never more than {masks.cap}"
        + ("" if masking["unit"] == "token" else " but for a longer word")
    )
    yield (
        f"of these {masks.masked_share:.1%} are [MASK] (set: {masking['mask_share']:.0%}), {masks.random_share:.1%} a"
        f" random token ({masking['random_share']:.0%}), {masks.kept_share:.1%} as they were ({rest:.0%})"
    )
    runs = ", ".join(f"{count}: {share:.1%}" for count, share in masks.runs.items())
    yield f"predicted tokens stand in runs (tokens in a run: share of the runs): {runs}"


def _title(example: Example) -> str:
    where = example.source_a if example.source_b in (None, example.source_a) else None
    where = where or f"A from {example.source_a}, B from {example.source_b}"
    return f"Row {example.row:,}{f': {example.label}' if example.label else ''} ({where})"


def _example_lines(example: Example) -> list[str]:
    """The row's segments, then each prediction: position, what stood there, what stands there now."""
    parts = [("A", 0), ("B", 1)] if 1 in example.segments else [("A", 0)]
    lines = []
    for name, segment in parts:
        tokens = [token for token, own in zip(example.tokens, example.segments, strict=True) if own == segment]
        lines += paragraph(f"{name}: {_joined(tokens)}", "  ")
    for start in range(0, len(example.predictions), 4):
        cells = [_shown(prediction) for prediction in example.predictions[start : start + 4]]
        lines.append(("    " + "  ".join(cell.ljust(25) for cell in cells)).rstrip())
    return lines


def _joined(tokens: list[str]) -> str:
    """Words put together; a piece after a special token keeps its ##."""
    return re.sub(r"(?<!\]) ##", "", " ".join(tokens))


def _shown(prediction: Prediction) -> str:
    now = {"masked": "[MASK]", "kept": "kept"}.get(prediction.kind, prediction.shown)
    return f"{prediction.position}: {prediction.original} -> {now}"

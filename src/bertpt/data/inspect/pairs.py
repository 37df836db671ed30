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
from bertpt.data.loader import PackedRows, gather, masker_for
from bertpt.data.locate import finished_store, tokenizer_dir
from bertpt.data.masking import max_predictions, row_keys
from bertpt.data.paircheck import check_pairs
from bertpt.data.plan import plan_epoch
from bertpt.data.random import bits
from bertpt.data.store import Tokens, TokenStore
from bertpt.data.wordpiece import WordPieceTokenizer, load_tokenizer

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


@dataclass(frozen=True, slots=True)
class RowFigures:
    """The rows of one epoch at one length."""

    length: int
    rows: int
    mean_tokens: float
    mean_fill: float
    full_share: float
    random_share: float | None
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
    chosen = dict.fromkeys(lengths or [phase.length for phase in config.train.phases])
    return PairFigures(
        directory=str(store.directory),
        rule=config.pairs.rule,
        documents=len(tokens.documents) - 1,
        of_documents=len(store.train.documents) - 1,
        settings={"pairs": config.pairs.model_dump(), "masking": config.masking.model_dump()},
        lengths=[_Rows(config, store, tokens, tokenizer, length).figures(samples, seed) for length in chosen],
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
        self, config: Config, store: TokenStore, tokens: Tokens, tokenizer: WordPieceTokenizer, length: int
    ) -> None:
        self.config, self.store, self.tokens, self.tokenizer, self.length = config, store, tokens, tokenizer, length
        self.masker = masker_for(store, config.masking)
        self.rows = plan_epoch(tokens, config.pairs, length=length, seed=config.train.seed, epoch=0)

    def figures(self, samples: int, seed: int) -> RowFigures:
        """All of it."""
        rows, paired = self.rows, self.config.pairs.rule != "none"
        sizes = rows["a_length"].astype(np.int64) + rows["b_length"] + np.where(rows["b_length"] > 0, 3, 2)
        step = max(1, self.length // 8)
        return RowFigures(
            length=self.length,
            rows=len(rows),
            mean_tokens=float(sizes.mean()),
            mean_fill=float(sizes.mean()) / self.length,
            full_share=float((sizes == self.length).mean()),
            random_share=float(rows["is_random"].mean()) if paired else None,
            mean_a=float(rows["a_length"].mean()),
            mean_b=float(rows["b_length"].mean()) if paired else None,
            tokens_per_row=histogram(sizes, [1, *range(step, self.length, step), self.length], self.length),
            masks=self._masks(),
            examples=[self._example(int(row)) for row in self._choice(samples, seed)],
        )

    def _choice(self, samples: int, seed: int) -> I64:
        """Places of the rows to show, as many random as true pairs among them where there are both."""
        order = np.argsort(bits(seed, _ORDER, np.arange(len(self.rows))), kind="stable")
        true, random = order[~self.rows["is_random"][order]], order[self.rows["is_random"][order]]
        both = min(len(true), len(random))
        turns = np.stack([true[:both], random[:both]], axis=1).ravel()
        return np.concatenate([turns, true[both:], random[both:]])[:samples]

    def _masked(self, places: I64) -> tuple[PackedRows, I64, I64, I64]:
        packed = gather(self.tokens, self.rows[places], self.store.special_ids)
        cap = max_predictions(self.config.masking.rate, self.length)
        return packed, *self.masker(packed.ids, packed.lengths, row_keys(self.config.train.seed, 0, places), cap)

    def _masks(self) -> MaskFigures:
        places = np.arange(min(len(self.rows), MASKED_ROWS))
        packed, ids, positions, labels = self._masked(places)
        now = ids[positions]
        row = np.repeat(places, packed.lengths)
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
        )

    def _example(self, place: int) -> Example:
        packed, ids, positions, labels = self._masked(np.array([place]))
        row = self.rows[place]
        label = None
        if self.config.pairs.rule != "none":
            label = "B is random" if row["is_random"] else "B follows A"
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
        document = int(np.searchsorted(self.tokens.document_starts, start, side="right")) - 1
        return self.store.source_labels[int(self.tokens.sources[document])]


def _share(flags: NDArray[np.bool_]) -> float:
    """Share of True; 0 of nothing (rows of [UNK] alone have nothing to predict)."""
    return float(flags.mean()) if len(flags) else 0.0


def _parts(figures: PairFigures) -> Iterator[tuple[str, list[str]]]:
    rule = {"next": "pairs with next-sentence labels", "none": "rows of one document, without pairs"}
    seen = f"{figures.documents:,} training documents"
    if figures.documents < figures.of_documents:
        seen += f", spread over all {figures.of_documents:,}: rows like those of training, not the same"
    yield (
        f"{figures.directory}: {rule.get(figures.rule, figures.rule)}",
        [f"  first epoch of {seen}"],
    )
    masking = figures.settings["masking"]
    for rows in figures.lengths:
        yield f"Length {rows.length}: {rows.rows:,} rows", [f"  {line}" for line in _row_lines(rows, figures)]
        yield "Tokens in a row, [CLS] and [SEP] included", bars(rows.tokens_per_row)
        yield f"Masks of {rows.masks.rows:,} rows", [f"  {line}" for line in _mask_lines(rows.masks, masking)]
        for example in rows.examples:
            yield _title(example), _example_lines(example)


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
        yield f"mean {rows.mean_a:.1f} tokens in A, {rows.mean_b:.1f} in B"


def _mask_lines(masks: MaskFigures, masking: dict[str, Any]) -> Iterator[str]:
    rest = 1 - masking["mask_share"] - masking["random_share"]
    yield (
        f"{masks.rate:.2%} of the maskable tokens are predicted (masking.rate {masking['rate']:g}): {masks.fewest} to"
        f" {masks.most} in a row, mean {masks.mean:.1f}, never more than {masks.cap}"
        + (" but for a longer word" if masking["whole_word"] else "")
    )
    yield (
        f"of these {masks.masked_share:.1%} are [MASK] (set: {masking['mask_share']:.0%}), {masks.random_share:.1%} a"
        f" random token ({masking['random_share']:.0%}), {masks.kept_share:.1%} as they were ({rest:.0%})"
    )


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

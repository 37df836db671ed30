"""From planned rows to batches: gather, mask, collate.

``BatchStream[i]`` is a pure function of (store, settings, seed, i): the same for any number of workers
and ranks, and after a resume, which needs to know only how many rows were consumed.
"""

from __future__ import annotations

import signal
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from bertpt.batch import Batch
from bertpt.config.schema import Masking, Pairs
from bertpt.data.rows.masking import Masker, max_predictions, row_keys, static_keys
from bertpt.data.rows.mixture import Mixture
from bertpt.data.rows.plan import ROW, pair_labels, plan_epoch
from bertpt.data.rows.plan_cache import kept_plan
from bertpt.data.stage import Split
from bertpt.data.tokens.store import Tokens, TokenStore
from bertpt.files import fingerprint

I64 = NDArray[np.int64]


class PackedRows(NamedTuple):
    """Rows as the model sees them before masking: [CLS] A [SEP] (B [SEP]), without padding."""

    ids: I64  # [T]
    token_types: I64  # [T], 0 for [CLS] A [SEP], 1 for B [SEP]
    lengths: I64  # [B]


def row_sizes(rows: NDArray[Any]) -> I64:
    """Tokens of the two stretches of planned rows, specials included, int64 [B, 2]: [CLS] A [SEP], then B [SEP]."""
    a, b = rows["a_length"].astype(np.int64), rows["b_length"].astype(np.int64)
    return np.stack([a + 2, np.where(b > 0, b + 1, 0)], axis=1)


def _places(rows: NDArray[Any]) -> tuple[I64, I64, I64]:
    """Offset in the store of each token, int64 [T]; sizes and ends of each row's two stretches, int64 [B, 2].

    The stretches are [CLS] A [SEP], then B [SEP]. The tokens beside a span make room for its special tokens; before the
    first one of the store and behind its last one there is none, so an offset may lie outside.
    """
    sizes = row_sizes(rows)
    starts = np.stack([rows["a_start"] - 1, rows["b_start"]], axis=1)
    ends = sizes.cumsum().reshape(sizes.shape)
    places = np.repeat((starts - ends + sizes).ravel(), sizes.ravel())
    places += np.arange(len(places))
    return places, sizes, ends


def gather(tokens: Tokens, rows: NDArray[Any], special_ids: dict[str, int]) -> PackedRows:
    """Copy the spans of planned ``rows`` out of the store, with their special tokens."""
    places, sizes, ends = _places(rows)
    ids = np.asarray(tokens.ids).take(places, mode="clip").astype(np.int64)
    ids[ends[:, 0] - sizes[:, 0]] = special_ids["cls"]
    ids[ends - 1] = special_ids["sep"]  # of an empty second stretch: the end of the first, once more
    token_types = np.repeat(np.tile([0, 1], len(rows)), sizes.ravel())
    return PackedRows(ids, token_types, sizes.sum(axis=1))


def masker_for(store: TokenStore, masking: Masking) -> Masker:
    """The masking rule for the store's vocabulary."""
    special = store.special_ids
    return Masker(
        settings=masking,
        vocab_size=store.vocab_size,
        mask_id=special["mask"],
        special=np.array(sorted(special.values()), np.int64),
        continues_word=store.continues_word,
    )


def store_places(rows: NDArray[Any]) -> I64:
    """int64 [T]: for each token its offset in the store, for special tokens that of one beside them."""
    return np.maximum(_places(rows)[0], 0)


def masked_rows(
    masker: Masker, packed: PackedRows, rows: NDArray[Any], seed: int, epochs: I64 | int, places: I64, length: int
) -> tuple[I64, I64, I64]:
    """Mask rows by seed, epoch and their place in the epoch's plan; static masks by epoch and place in the store.

    Args:
        masker: the rule.
        packed: the gathered ``rows``, [B].
        rows: as planned.
        seed: of the stream.
        epochs: int64 [B], or one for all.
        places: int64 [B].
        length: most tokens of a row, from which the most predictions follow.

    Returns:
        as :class:`Masker`.
    """
    cap = max_predictions(masker.settings.rate, length)
    if factor := masker.settings.dupe_factor:
        keys = static_keys(seed, epochs, factor, len(packed.lengths))
        return masker(packed.ids, packed.lengths, keys, cap, store_places(rows))
    return masker(packed.ids, packed.lengths, row_keys(seed, epochs, places), cap)


@contextmanager
def _children_unheard() -> Iterator[None]:
    """Keep torch from answering the death of a loader process with an exception wherever the program stands.

    One out of a finaliser or a lock is lost, printed, or leaves the lock held. Without it the next batch raises, within
    the 5 seconds after which torch looks whether its processes live.
    """
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Workers that are started inside never get the signals that ask the program to stop.

    A terminal and a batch system send them to every process; the program alone is to answer, and it needs the
    workers up to the end of its update. They end with the loader, or when their parent is gone.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class EpochPlans:
    """The plans of successive epochs as one endless sequence of rows.

    Each plan is kept in ``cache`` as a memory-mapped file, which workers and ranks share. ``starts[e]`` is
    the number of rows before epoch e; it grows as epochs are planned and belongs into a
    checkpoint, so that a resume in a late epoch plans only that one.
    """

    store: TokenStore
    split: Split
    pairs: Pairs
    length: int
    seed: int
    cache: Path | None = None
    starts: list[int] = field(default_factory=lambda: [0])
    mixture: Mixture | None = None
    _open: dict[int, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}  # a worker opens the files itself

    @property
    def tokens(self) -> Tokens:
        """The split that the rows are spans of."""
        return self.store.split(self.split)

    def epoch(self, epoch: int) -> NDArray[Any]:
        """The rows of an epoch, planned or from the cache."""
        if epoch not in self._open:
            self._open = {e: plan for e, plan in self._open.items() if e >= epoch - 1}
            self._open[epoch] = self._plan(epoch)
        plan = self._open[epoch]
        if len(self.starts) == epoch + 1:
            self.starts.append(self.starts[epoch] + len(plan))
        return plan

    def _plan(self, epoch: int) -> NDArray[Any]:
        make = partial(
            plan_epoch,
            self.tokens,
            self.pairs,
            length=self.length,
            seed=self.seed,
            epoch=epoch,
            mixture=self.mixture,
        )
        if self.cache is None:
            return make()
        mixture = None if self.mixture is None else asdict(self.mixture)
        settings = [self.split, self.pairs.model_dump(), self.length, self.seed, ROW.descr, mixture]
        return kept_plan(self.cache, "plan-" + fingerprint(settings)[:8], epoch, make)

    def locate(self, row: int) -> tuple[int, int]:
        """Epoch and place in its plan of the ``row``-th row of the whole sequence."""
        while row >= self.starts[-1]:
            self.epoch(len(self.starts) - 1)
        epoch = bisect_right(self.starts, row) - 1
        return epoch, row - self.starts[epoch]

    def take(self, start: int, count: int) -> tuple[NDArray[Any], I64, I64]:
        """Rows [start, start + count) of the sequence: the rows, their epochs and their places."""
        rows, epochs, places = [], [], []
        while count:
            epoch, place = self.locate(start)
            part = self.epoch(epoch)[place : place + count]
            rows.append(part)
            epochs.append(np.full(len(part), epoch))
            places.append(np.arange(place, place + len(part)))
            start, count = start + len(part), count - len(part)
        return np.concatenate(rows), np.concatenate(epochs), np.concatenate(places)


@dataclass
class BatchStream(Dataset[Batch]):
    """The batches of a phase or an evaluation.

    Item i holds rows [i * batch_size, (i + 1) * batch_size), item (start, count) rows [start, start + count).
    """

    plans: EpochPlans
    masker: Masker
    batch_size: int

    @classmethod
    def create(
        cls,
        store: TokenStore,
        split: Split,
        *,
        pairs: Pairs,
        masking: Masking,
        length: int,
        batch_size: int,
        seed: int,
        cache: Path | None = None,
        starts: list[int] | None = None,
        mixture: Mixture | None = None,
    ) -> BatchStream:
        """Rows of at most ``length`` tokens, planned and masked by ``seed``."""
        plans = EpochPlans(store, split, pairs, length, seed, cache, starts or [0], mixture)
        return cls(plans, masker_for(store, masking), batch_size)

    def __getitem__(self, index: int | tuple[int, int]) -> Batch:
        if isinstance(index, tuple):
            return self.rows(*index)
        return self.rows(index * self.batch_size, self.batch_size)

    def rows(self, start: int, count: int) -> Batch:
        """The batch of ``count`` rows from the ``start``-th on."""
        rows, epochs, places = self.plans.take(start, count)
        packed = gather(self.plans.tokens, rows, self.plans.store.special_ids)
        ids, positions, labels = masked_rows(
            self.masker, packed, rows, self.plans.seed, epochs, places, self.plans.length
        )
        rule = self.plans.pairs.rule
        label = None if rule == "none" else torch.from_numpy(pair_labels(rows, rule).astype(np.int64))
        return Batch.from_lengths(
            torch.from_numpy(ids),
            torch.from_numpy(packed.token_types),
            torch.from_numpy(packed.lengths),
            masked_positions=torch.from_numpy(positions),
            masked_labels=torch.from_numpy(labels),
            next_sentence_label=label,
        )

    def batches(
        self, items: Iterable[int] | Iterable[tuple[int, int]], *, workers: int = 0, pin: bool = False
    ) -> Iterator[Batch]:
        """The items in their order, made by ``workers`` processes ahead of their use."""
        loader: DataLoader[Batch] = DataLoader(
            self,
            batch_size=None,
            sampler=items,
            num_workers=workers,
            pin_memory=pin,
            multiprocessing_context="spawn" if workers else None,
            generator=torch.Generator(),  # else each loader takes a number from the generator of dropout
        )
        with _signals_held(), _children_unheard():
            return iter(loader)

"""The linear-chain CRF against enumeration of all tag sequences; rows packed, parts of chains, gradients, precision."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertpt.model.crf import LinearChainCrf, best_path

WHOLE = (True, True)


def random_crf(tags: int, seed: int = 0, scale: float = 1.0) -> LinearChainCrf:
    draw = torch.Generator().manual_seed(seed)
    crf = LinearChainCrf(tags)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * scale)
    return crf


def every_score(
    crf: LinearChainCrf, emissions: Tensor, ends: tuple[bool, bool] = WHOLE
) -> dict[tuple[int, ...], Tensor]:
    """The score of each sequence by the definition, word by word."""
    words, tags = emissions.shape
    found = {}
    for path in itertools.product(range(tags), repeat=words):
        total = emissions[range(words), path].sum() + ends[0] * crf.start[path[0]] + ends[1] * crf.end[path[-1]]
        for one, other in itertools.pairwise(path):
            total = total + crf.transitions[one, other]
        found[path] = total
    return found


@settings(deadline=None, max_examples=20)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), tags=st.integers(1, 3), seed=st.integers(0, 99),
    data=st.data(),
)  # fmt: skip
def test_likelihood_and_best_path_of_packed_rows_equal_enumeration(
    counts: list[int], tags: int, seed: int, data: st.DataObject
) -> None:
    draw = torch.Generator().manual_seed(seed)
    crf = random_crf(tags, seed, scale=2.0)
    emissions = torch.randn(sum(counts), tags, generator=draw) * 2
    labels = torch.randint(0, tags, (sum(counts),), generator=draw)
    ends = [data.draw(st.tuples(st.booleans(), st.booleans())) for _ in counts]
    found = crf(emissions, labels, torch.tensor(counts), torch.tensor(ends))
    path = best_path(emissions, torch.tensor(counts), crf.start, crf.transitions, crf.end)
    assert bool((found <= 1e-5).all())  # a likelihood is never above 1
    parts = zip(emissions.split(counts), labels.split(counts), path.split(counts), ends, found, strict=True)
    for own, truth, best, own_ends, likelihood in parts:
        scores = every_score(crf, own, own_ends)
        expected = scores[tuple(truth.tolist())] - torch.stack(list(scores.values())).logsumexp(0)
        assert likelihood.item() == pytest.approx(expected.item(), abs=1e-4)
        whole = every_score(crf, own)
        assert whole[tuple(best.tolist())].item() == pytest.approx(max(whole.values()).item(), abs=1e-5)


def test_three_tags_of_four_words_by_hand() -> None:
    """All 81 probabilities add up to 1."""
    crf, emissions = random_crf(3), torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        likelihood = crf(emissions, torch.tensor(path), torch.tensor([4]), torch.tensor([WHOLE]))
        total += math.exp(likelihood.item())
    assert total == pytest.approx(1.0, abs=1e-5)


def test_gradients_equal_those_of_the_enumeration() -> None:
    crf, emissions = random_crf(3), torch.randn(7, 3, generator=torch.Generator().manual_seed(2)).requires_grad_()
    labels, counts, ends = torch.tensor([0, 2, 1, 1, 0, 2, 2]), [3, 4], [WHOLE, (True, False)]
    wanted: list[Tensor] = [emissions, *crf.parameters()]
    found = torch.autograd.grad(crf(emissions, labels, torch.tensor(counts), torch.tensor(ends)).sum(), wanted)
    total = torch.zeros(())
    for own, truth, own_ends in zip(emissions.split(counts), labels.split(counts), ends, strict=True):
        scores = every_score(crf, own, own_ends)
        total = total + scores[tuple(truth.tolist())] - torch.stack(list(scores.values())).logsumexp(0)
    for one, other in zip(found, torch.autograd.grad(total, wanted), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_padding_of_other_rows_changes_nothing() -> None:
    crf, draw = random_crf(4), torch.Generator().manual_seed(3)
    one, other = torch.randn(2, 4, generator=draw), torch.randn(30, 4, generator=draw)
    labels = torch.randint(0, 4, (32,), generator=draw)
    both = crf(torch.cat([one, other]), labels, torch.tensor([2, 30]), torch.tensor([WHOLE, WHOLE]))
    alone = crf(one, labels[:2], torch.tensor([2]), torch.tensor([WHOLE]))
    assert both[0].item() == pytest.approx(alone.item(), abs=1e-6)


def test_huge_scores_and_long_rows_stay_finite() -> None:
    crf = random_crf(5, scale=1e3)
    emissions = (torch.randn(600, 5, generator=torch.Generator().manual_seed(0)) * 1e3).requires_grad_()
    labels, counts = torch.zeros(600, dtype=torch.long), torch.tensor([600])
    found = crf(emissions, labels, counts, torch.tensor([WHOLE])).sum()
    found.backward()
    assert torch.isfinite(found)
    assert emissions.grad is not None
    assert bool(emissions.grad.isfinite().all())
    path = best_path(emissions.detach(), counts, crf.start, crf.transitions, crf.end)
    likelihood = crf(emissions.detach(), path, counts, torch.tensor([WHOLE]))
    assert likelihood.item() == pytest.approx(0.0, abs=1.0)  # fp32 of sums near 1e6


def test_it_is_computed_in_fp32_under_autocast() -> None:
    crf, emissions = random_crf(4), torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    arguments = (torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([4, 2]), torch.tensor([WHOLE, WHOLE]))
    with torch.autocast("cpu", torch.bfloat16):
        found = crf(emissions, *arguments)
    assert found.dtype == torch.float32
    assert torch.equal(found, crf(emissions.float(), *arguments))


def test_forbidden_steps_are_never_taken() -> None:
    draw = torch.Generator().manual_seed(5)
    allowed = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
    transitions = torch.zeros(3, 3).masked_fill(~allowed, -torch.inf)
    start = torch.tensor([0.0, -torch.inf, 0.0])
    for _ in range(50):
        emissions = torch.randn(5, 3, generator=draw) * 3
        path = best_path(emissions, torch.tensor([5]), start, transitions, torch.zeros(3)).tolist()
        legal_paths = [
            each
            for each in itertools.product(range(3), repeat=5)
            if each[0] != 1 and all(allowed[one, other] for one, other in itertools.pairwise(each))
        ]
        expected = max(legal_paths, key=lambda each: sum(float(emissions[n, tag]) for n, tag in enumerate(each)))
        assert tuple(path) == expected


def test_a_new_one_is_a_softmax_of_each_word() -> None:
    emissions, labels = torch.randn(7, 3), torch.randint(0, 3, (7,))
    found = LinearChainCrf(3)(emissions, labels, torch.tensor([3, 4]), torch.tensor([WHOLE, WHOLE]))
    assert -found.sum().item() == pytest.approx(
        torch.nn.functional.cross_entropy(emissions, labels, reduction="sum").item(), abs=1e-4
    )

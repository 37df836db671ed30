"""Extractive summarization: each sentence of an article is scored, and the best are its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from bertpt.batch import Batch, LossTerm
from bertpt.config.finetune.summarization import SummarizationConfig
from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.model.sentences import BertForSentenceScoring
from bertpt.tasks.summarization.article_windows import Windows, encode_articles, label_array
from bertpt.tasks.summarization.articles import Article, part_articles, read_articles
from bertpt.tasks.summarization.rouge import NAMES, rouge, words
from bertpt.tasks.task import Encoded, Examples, Facts, Scored, Task, nothing, outputs
from bertpt.train.updates.step import Objective, Terms


class Summarization(Task):
    """Sentences of an article, verbatim and in order.

    Its facts: ``pooling``, ``k`` or ``share`` (how many sentences are chosen), ``trigram_blocking``, and what another
    process needs to split an article the same way: ``language``, ``sentences``, ``headline``, ``article`` (the column).
    """

    baseline: ClassVar[str] = "lead-k"
    unit: ClassVar[str] = "articles"
    overflow: ClassVar[str] = "read in windows of"
    count_words: ClassVar[Mapping[str, str]] = {
        "blank": "blank lines passed over",
        "empty": "articles without a sentence passed over",
        "no_summary": "articles without a summary passed over",
        "repeated": "articles that stand in the same split before, left out",
        "heldout": "articles that stand in dev or test, left out of train",
        "verbatim": "summaries found in the article (their sentences are the labels)",
        "greedy": "summaries in other words (labels chosen greedily by ROUGE)",
        "one_sentence": "articles of one sentence",
        "no_sentence": "articles without a labelled sentence",
    }

    def read(self, path: str, config: SummarizationConfig) -> Examples:
        """The articles of a table."""
        return read_articles(path, config)

    def part(self, found: Mapping[str, Examples], config: SummarizationConfig) -> Mapping[str, Examples]:
        """Parts of one file; no copies within a split, nor of dev and test in train."""
        return part_articles(found, config.data.shares)

    def facts(self, config: SummarizationConfig, train: Sequence[Article]) -> Facts:
        """How many sentences a summary has, and how they are found.

        Raises:
            RequestError: no sentence of train is labelled.
        """
        chosen = sum(len(article.labels) for article in train)
        if not chosen:
            raise RequestError(f"{config.data.train}: no sentence of any article is part of its summary")
        share, k = config.summary.share, config.summary.k
        if share == "auto":
            share = round(chosen / sum(len(article.spans) for article in train), 4)
        if k == "auto":
            k = max(1, round(chosen / len(train)))
        return {
            "pooling": config.head.pooling,
            "k": k if share is None else None,
            "share": share,
            "trigram_blocking": config.summary.trigram_blocking,
            "language": config.data.language,
            "sentences": config.data.sentences,
            "headline": config.data.headline,
            "article": config.data.article,
        }

    def build(self, model: Model, facts: Facts) -> BertForSentenceScoring:
        """Encoder and head."""
        return BertForSentenceScoring(model, facts["vocab_size"], mean=facts.get("pooling") == "mean")

    def encode(
        self, examples: Sequence[Article], tokenizer: WordPieceTokenizer, facts: Facts, *, known: bool
    ) -> Windows:
        """Windows of each article."""
        segments = facts.get("model", {}).get("type_vocab_size", 2)
        return encode_articles(examples, tokenizer, max_length=facts["max_length"], segments=segments, known=known)

    def fit(self, encoded: Encoded, facts: Facts) -> str:
        """How many articles have several windows, and how many sentences are cut."""
        assert isinstance(encoded, Windows)
        more = f", {encoded.cut_sentences:,} sentences cut" if encoded.cut_sentences else ""
        return (
            f"{len(encoded.rows):,} windows, {encoded.cut:,} articles in several of {facts['max_length']} tokens{more}"
        )

    def objective(self, config: SummarizationConfig, facts: Facts, train: Sequence[Article]) -> Objective:
        """Binary cross entropy of the sentences."""
        return sentence_loss

    def count_terms(self, batch: Batch) -> dict[str, int]:
        """Sentences."""
        assert batch.token_positions is not None
        return {"label": batch.token_positions.shape[0]}

    def predict(
        self,
        model: nn.Module,
        encoded: Encoded,
        facts: Facts,
        *,
        precision: str = "fp32",
        before_batch: Callable[[], None] = nothing,
    ) -> list[NDArray[np.float32]]:
        """Logits of the sentences of each article."""
        assert isinstance(encoded, Windows)
        offsets = encoded.rows.mark_offsets
        assert offsets is not None
        found = np.empty(int(offsets[-1]), np.float32)
        for indices, _, logits in outputs(model, encoded, precision=precision, before_batch=before_batch):
            found[encoded.rows.marked(indices)] = logits.float().cpu().numpy()
        return np.split(found, np.cumsum(encoded.sentences)[:-1]) if len(encoded.sentences) else []

    def score(self, examples: Sequence[Article], predictions: Sequence[NDArray[np.float32]], facts: Facts) -> Scored:
        """Mean ROUGE of the summaries and the loss (nats a sentence); of lead-k, as long; of the labelled sentences."""
        chosen = [choose(article, logits, facts) for article, logits in zip(examples, predictions, strict=True)]
        leading = [list(range(summary_size(article, facts))) for article in examples]
        logits = torch.from_numpy(np.concatenate(predictions))
        loss = float(F.binary_cross_entropy_with_logits(logits, torch.from_numpy(label_array(examples))))
        return Scored(
            mean_rouge(examples, chosen) | {"loss": loss},
            mean_rouge(examples, leading),
            {
                "oracle": mean_rouge(examples, [article.labels for article in examples]),
                "mean_sentences": {
                    "article": _mean(len(article.spans) for article in examples),
                    "summary": _mean(map(len, chosen)),
                    "lead": _mean(map(len, leading)),
                    "oracle": _mean(len(article.labels) for article in examples),
                },
            },
        )

    def describe(
        self, examples: Sequence[Article], predictions: Sequence[NDArray[np.float32]], facts: Facts
    ) -> Iterator[dict[str, Any]]:
        """``place``, ``summary`` and ``scores`` of all sentences, 0 to 1.

        Each sentence of the summary has its ``number`` from 0, ``begin`` and ``end`` in characters of the article as
        it was given, ``score`` and ``text``.
        """
        for article, logits in zip(examples, predictions, strict=True):
            scores = torch.from_numpy(logits).double().sigmoid().tolist()
            summary = []
            for number in choose(article, logits, facts):
                begin, end = article.spans[number]
                own = {"number": number, "begin": begin, "end": end, "score": round(scores[number], 6)}
                summary.append(own | {"text": article.text[begin:end]})
            yield {"place": article.place, "summary": summary, "scores": [round(score, 6) for score in scores]}

    def truth(self, example: Article) -> list[int]:
        """Numbers of the labelled sentences."""
        return list(example.labels)

    def detail_lines(self, split: str, details: Mapping[str, Any], facts: Facts) -> Iterator[str]:
        """The oracle, and lengths."""
        scores = ", ".join(f"{name} {details['oracle'][name]:.4f}" for name in NAMES)
        lengths = details["mean_sentences"]
        yield (
            f"  {split}: the labelled sentences themselves: {scores}; sentences of an article {lengths['article']:.1f},"
            f" of a summary {lengths['summary']:.1f}, labelled {lengths['oracle']:.1f}"
        )

    def key(self, example: Article) -> tuple[str, ...]:
        """The text, whatever its white space."""
        return (example.key,)

    def label_counts(self, examples: Sequence[Article], facts: Facts) -> dict[str, float]:
        """Sentences, those that are labelled, and how many sentences an article has."""
        sizes = np.array([len(article.spans) for article in examples] or [0])
        return {
            "sentences": int(sizes.sum()),
            "labelled": sum(len(article.labels) for article in examples),
            "fewest of an article": int(sizes.min()),
            "median": float(np.median(sizes)),
            "most": int(sizes.max()),
        }


def sentence_loss(model: Any, batch: Batch) -> Terms:
    """Loss term ``label``: binary cross entropy summed over sentences; and how many are on the right side of 0."""
    assert batch.token_labels is not None
    logits = model(batch).float()
    loss = F.binary_cross_entropy_with_logits(logits, batch.token_labels, reduction="sum")
    right = ((logits > 0) == (batch.token_labels > 0)).sum()
    return Terms({"label": LossTerm(loss, batch.token_labels.shape[0])}, {"label": right})


def summary_size(article: Article, facts: Facts) -> int:
    """How many sentences are chosen of an article: one or more, and not more than it has."""
    wanted: int = facts["k"] if facts["share"] is None else max(1, round(facts["share"] * len(article.spans)))
    return min(wanted, len(article.spans))


def choose(article: Article, logits: NDArray[np.float32], facts: Facts) -> list[int]:
    """Numbers of the sentences of the highest scores, rising; of equal ones the first.

    With ``trigram_blocking`` one that shares three words in a row with a better one is passed over, so that fewer
    may be left.
    """
    size = summary_size(article, facts)
    found: list[int] = []
    seen: set[tuple[str, ...]] = set()
    for number in np.argsort(-logits, kind="stable").tolist():
        if len(found) == size:
            break
        if facts["trigram_blocking"]:
            tokens = words(article.sentences[number])
            trigrams = set(zip(tokens, tokens[1:], tokens[2:], strict=False))
            if trigrams & seen:
                continue
            seen |= trigrams
        found.append(number)
    return sorted(found)


def mean_rouge(articles: Sequence[Article], chosen: Sequence[Sequence[int]]) -> dict[str, float]:
    """Mean F-measures of summaries made of these sentences."""
    each = []
    for article, numbers in zip(articles, chosen, strict=True):
        sentences = article.sentences
        each.append(rouge(words(" ".join(sentences[number] for number in numbers)), words(article.summary)))
    return {name: float(np.mean([scores[name] for scores in each])) for name in NAMES}


def _mean(values: Any) -> float:
    return round(float(np.mean(list(values))), 4)

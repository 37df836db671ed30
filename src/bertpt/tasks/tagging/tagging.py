"""A tag for each word of a sentence, entities among them: model, loss, predictions, scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertpt.batch import Batch, LossTerm
from bertpt.config import plain
from bertpt.config.finetune.tagging import TaggingConfig, TagHead
from bertpt.config.schema import Model
from bertpt.data.tokenizer.wordpiece import WordPieceTokenizer
from bertpt.errors import RequestError
from bertpt.model.crf import LinearChainCrf, best_path
from bertpt.model.token import BertForTokenClassification
from bertpt.tasks.examples import few
from bertpt.tasks.metrics import entity_scores, tag_scores
from bertpt.tasks.tagging.iob import OUTSIDE, complete, entities, legal, to_iob2
from bertpt.tasks.tagging.tagged import Sentence, read_sentences
from bertpt.tasks.tagging.words import EncodedWords, encode_words
from bertpt.tasks.task import EVALUATION_ROWS, Encoded, Examples, Facts, Scored, Task, nothing, outputs
from bertpt.train.updates.step import Objective, Terms

_SHOWN_TYPES = 30  # in a table


class Tagging(Task):
    """Tags of words; in ``ner`` they are entities in strict IOB2, in what is read and in what is predicted.

    Its facts: ``labels`` by number, ``entities``: whether tags are IOB2, ``head``, and ``baseline``: the most frequent
    tag of train, and by word that of the words that have another one.
    """

    baseline: ClassVar[str] = "most frequent tag of each word"
    unit: ClassVar[str] = "sentences"
    overflow: ClassVar[str] = "read in windows of"
    count_words: ClassVar[Mapping[str, str]] = {
        "blank": "blank lines passed over",
        "empty": "sentences without words passed over",
        "comments": "comments passed over",
        "documents": "lines of -DOCSTART- passed over",
        "ranges": "ranges of words (N-M) passed over",
        "empty_nodes": "empty nodes (N.1) passed over",
        "from_iob1": "tags of IOB1 written as IOB2",
        "from_iob2": "tags repaired to IOB2",
        "from_bioes": "tags of BIOES written as IOB2",
        "from_io": "types written as IOB2",
        "ill_formed": "tags that their scheme forbids where they stand: `I-` begins an entity there",
    }

    def read(self, path: str, config: TaggingConfig) -> Examples:
        """The sentences of a file."""
        return read_sentences(Path(path), config.data, entities=config.task == "ner")

    def facts(self, config: TaggingConfig, train: Sequence[Sentence]) -> Facts:
        """Tags and settings.

        Raises:
            RequestError: a single tag, or no entity.
        """
        tags = {tag for sentence in train for tag in sentence.tags}
        is_entities = config.task == "ner"
        if tags <= {OUTSIDE} if is_entities else len(tags) < 2:
            raise RequestError(
                f"{config.data.train}: {'no entity' if is_entities else f'one tag ({few(tags)})'}; data.tag names the"
                " column of the tags"
            )
        return {
            "labels": sorted(complete(tags) if is_entities else tags),
            "entities": is_entities,
            "head": plain(config.head),
            "baseline": _by_word(train),
        }

    def unfit(self, examples: Sequence[Sentence], facts: Facts) -> list[str]:
        """Tags that train lacks."""
        known = set(facts["labels"])
        return [
            f"{sentence.where(index)}: tag {tag!r} does not stand in train: {few(facts['labels'])}"
            for sentence in examples
            for index, tag in enumerate(sentence.tags)
            if tag not in known
        ]

    def build(self, model: Model, facts: Facts) -> BertForTokenClassification:
        """Encoder and head, without a pooler."""
        head = TagHead.model_validate(facts["head"])
        return BertForTokenClassification(
            model,
            facts["vocab_size"],
            len(facts["labels"]),
            dropout=model.hidden_dropout_prob if head.dropout is None else head.dropout,
            crf=head.crf,
        )

    def encode(
        self, examples: Sequence[Sentence], tokenizer: WordPieceTokenizer, facts: Facts, *, known: bool
    ) -> EncodedWords:
        """A row for each sentence, or several windows of one that is too long."""
        encoded = encode_words(tokenizer, [sentence.words for sentence in examples], facts["max_length"])
        if known:
            encoded.mark_labels = torch.from_numpy(numbers(examples, facts))
        return encoded

    def fit(self, encoded: Encoded, facts: Facts) -> str:
        """How many are read in windows, and words of which the tokenizer keeps nothing."""
        assert isinstance(encoded, EncodedWords)
        lost = encoded.without_pieces
        return super().fit(encoded, facts) + (f", {lost:,} words [UNK] for want of a piece" if lost else "")

    def objective(self, config: TaggingConfig, facts: Facts, train: Sequence[Sentence]) -> Objective:
        """Cross entropy of each word's tag, or the negative log-likelihood of all of a row."""
        return words_objective

    def count_terms(self, batch: Batch) -> dict[str, int]:
        """Words."""
        assert batch.token_positions is not None
        return {"label": len(batch.token_positions)}

    def predict(
        self,
        model: nn.Module,
        encoded: Encoded,
        facts: Facts,
        *,
        precision: str = "fp32",
        before_batch: Callable[[], None] = nothing,
    ) -> list[NDArray[np.int64]]:
        """Numbers of the tags of each sentence, int64 [W].

        The best sequence of the whole sentence, out of what each window says of its words: with a CRF by its scores;
        of entities the best one that is strict IOB2; else the best tag of each word.
        """
        assert isinstance(encoded, EncodedWords)
        assert isinstance(model, BertForTokenClassification)
        emissions = torch.empty(int(encoded.words.sum()), len(facts["labels"]))
        for indices, _, logits in outputs(model, encoded, precision=precision, before_batch=before_batch):
            emissions[torch.from_numpy(encoded.rows.marked(indices))] = logits.float().cpu()
        return decode(emissions, encoded.words, model.crf, facts)

    def score(self, examples: Sequence[Sentence], predictions: Any, facts: Facts) -> Scored:
        """Accuracy of words; precision, recall and F1 of entities (type and both ends right), or macro F1 of tags."""
        usual, by_word = facts["baseline"]["tag"], facts["baseline"]["words"]
        true = [sentence.tags for sentence in examples]
        found = [_names(tags, facts) for tags in predictions]
        guesses = [[by_word.get(word, usual) for word in sentence.words] for sentence in examples]
        if not facts["entities"]:
            own, beside = tag_scores(true, found, facts["labels"]), tag_scores(true, guesses, facts["labels"])
            return Scored(own.scores, beside.scores, {"tags": own.each})
        own, beside = entity_scores(true, found), entity_scores(true, [to_iob2(tags, "iob2") for tags in guesses])
        return Scored(own.scores, beside.scores, {"types": own.each})

    def describe(self, examples: Sequence[Sentence], predictions: Any, facts: Facts) -> Iterator[dict[str, Any]]:
        """``text``, its ``words`` and ``tags``, and ``entities`` with their slice of the text."""
        for sentence, numbers_ in zip(examples, predictions, strict=True):
            tags, words = _names(numbers_, facts), sentence.words
            text, starts = sentence.text, sentence.starts
            if text is None:
                text, starts = " ".join(words), tuple(accumulate((len(word) + 1 for word in words), initial=0))[:-1]
            found: dict[str, Any] = {"text": text, "words": list(words), "tags": tags}
            if facts["entities"]:
                found["entities"] = [
                    {"text": text[begin:end], "type": kind, "start": begin, "end": end}
                    for kind, first, after in entities(tags)
                    for begin, end in [(starts[first], starts[after - 1] + len(words[after - 1]))]
                ]
            yield found

    def truth(self, example: Sentence) -> list[str]:
        """The tags."""
        return list(example.tags)

    def detail_lines(self, split: str, details: Mapping[str, Any], facts: Facts) -> Iterator[str]:
        """Scores by type or by tag."""
        each = details["types" if facts["entities"] else "tags"]
        if len(each) > _SHOWN_TYPES:
            yield f"  {split}: scores of {len(each)} tags in eval.json"
            return
        width = max(8, *(len(name) + 2 for name in each))
        yield f"  {split + ', by ' + ('type' if facts['entities'] else 'tag') + ':':<{width + 20}}"
        yield f"  {'':<{width}}{'precision':>10}{'recall':>10}{'f1':>10}{'in file':>10}"
        for name, own in each.items():
            cells = "".join(f"{own[score]:>10.4f}" for score in ("precision", "recall", "f1"))
            yield f"  {name:<{width}}{cells}{own['count']:>10,}"

    def key(self, example: Sentence) -> tuple[str, ...]:
        """The words."""
        return example.words

    def label_counts(self, examples: Sequence[Sentence], facts: Facts) -> dict[str, float]:
        """Words by tag."""
        counts = Counter(tag for sentence in examples for tag in sentence.tags)
        names = facts.get("labels", [])
        return {name: counts[name] for name in [*names, *sorted(counts.keys() - set(names))]}


def numbers(examples: Sequence[Sentence], facts: Facts) -> NDArray[np.int64]:
    """Numbers of all tags, one sentence after the other, int64 [K]."""
    number = {name: index for index, name in enumerate(facts["labels"])}
    return np.array([number[tag] for sentence in examples for tag in sentence.tags], np.int64)


def words_objective(model: Any, batch: Batch) -> Terms:
    """Loss term ``label`` of the marked words, summed, and without a CRF right predictions."""
    assert batch.token_labels is not None
    assert batch.token_counts is not None
    assert batch.row_labels is not None
    logits, labels = model(batch).float(), batch.token_labels
    if model.crf is not None:
        loss = -model.crf(logits, labels, batch.token_counts, batch.row_labels).sum()
        return Terms({"label": LossTerm(loss, len(labels))}, {})
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return Terms({"label": LossTerm(loss, len(labels))}, {"label": (logits.argmax(-1) == labels).sum()})


@torch.inference_mode()
def decode(
    emissions: Tensor, words: NDArray[np.int64], crf: LinearChainCrf | None, facts: Facts
) -> list[NDArray[np.int64]]:
    """The best tags of each sentence, int64 [W].

    Args:
        emissions: float32 [K, C], of all words.
        words: int64 [sentences], of each.
        crf: its scores; ``None``: 0.
        facts: where tags are entities, what is no IOB2 is forbidden.
    """
    offsets = np.concatenate(([0], np.cumsum(words)))
    if crf is None and not facts["entities"]:
        path = emissions.argmax(-1)
    else:
        tags = emissions.shape[1]
        start, transitions, end = torch.zeros(tags), torch.zeros(tags, tags), torch.zeros(tags)
        if crf is not None:
            start, transitions, end = (score.float().cpu() for score in (crf.start, crf.transitions, crf.end))
        if facts["entities"]:
            first, follows = (torch.from_numpy(allowed) for allowed in legal(facts["labels"]))
            start = start.masked_fill(~first, -torch.inf)
            transitions = transitions.masked_fill(~follows, -torch.inf)
        path = torch.empty(len(emissions), dtype=torch.long)
        order = np.argsort(words, kind="stable")
        order = order[words[order] > 0]
        for begin in range(0, len(order), EVALUATION_ROWS):
            rows = order[begin : begin + EVALUATION_ROWS]
            at = torch.from_numpy(np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows]))
            path[at] = best_path(emissions[at], torch.from_numpy(words[rows]), start, transitions, end)
    return [path[begin:end].numpy() for begin, end in pairwise(offsets)]


def _names(tags: NDArray[np.int64], facts: Facts) -> list[str]:
    return [facts["labels"][tag] for tag in tags.tolist()]


def _by_word(train: Sequence[Sentence]) -> dict[str, Any]:
    """The most frequent tag, and that of each word where it is another; of equally frequent ones the first."""
    counts: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    usual = _most_frequent(sum(counts.values(), Counter()))
    by_word = {word: _most_frequent(own) for word, own in counts.items()}
    return {"tag": usual, "words": {word: tag for word, tag in sorted(by_word.items()) if tag != usual}}


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))

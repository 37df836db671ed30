"""Whether a store can give the rows that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertpt.data.stage import SPLITS
from bertpt.errors import RequestError

_INSTEAD = "set pairs.rule: none (rows of one document, without pairs) or give other documents"


def pair_faults(manifest: Mapping[str, Any], rule: str) -> list[str]:
    """Why a store cannot serve a pair rule, or no rule at all, one line each; empty when it can.

    Next-sentence pairs need a document of two sentences for a true continuation and another document
    for a random one, in training and held out alike; pairs in order or swapped need the first of these.
    """
    faults = [
        f"{split}: all {counts['tokens']:,} tokens are [UNK], so there is nothing to predict; the vocabulary does not"
        " fit the text (tokenizer.from)"
        for split in SPLITS
        if 0 < (counts := manifest["counts"][split]).get("tokens", 0) == counts.get("unknown_tokens")
    ]
    for split in SPLITS if rule != "none" else ():
        counts = manifest["counts"][split]
        documents, several = counts["documents"], counts["documents_of_two_sentences_or_more"]
        if documents < 2 and rule == "next":
            what = f"{documents} document{'' if documents == 1 else 's'}; a random second half needs another document"
        elif not several:
            what = f"{documents:,} documents, each of one sentence; a true pair needs two sentences of one document"
        else:
            continue
        faults.append(f"pairs.rule: {rule} cannot be made: {split} has {what}; {_INSTEAD}")
    return faults


def check_pairs(manifest: Mapping[str, Any], rule: str) -> None:
    """Refuse a store that cannot serve a pair rule.

    Raises:
        RequestError: see ``pair_faults``.
    """
    if faults := pair_faults(manifest, rule):
        raise RequestError(faults)

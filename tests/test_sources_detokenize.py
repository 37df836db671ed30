"""WikiText as it was written: no loose punctuation, no ``@-@``, no headings."""

from __future__ import annotations

import pytest

from bertpt.data.corpus.sources.detokenize import detokenize_wikitext, is_wikitext_heading


@pytest.mark.parametrize(
    ("tokens", "written"),
    [
        (" A role @-@ playing game , sold 1 @,@ 500 times for $ 2 @.@ 5 million . ",
         "A role-playing game, sold 1,500 times for $2.5 million."),
        (" The player 's units don 't move ; they 've ( almost ) stopped ! ",
         "The player's units don't move; they've (almost) stopped!"),
        (' He said : " It is , \' as they say \' , good . " And he left . ',
         "He said: \"It is, 'as they say', good.\" And he left."),
        (' The " Blue " and the " Red " . ', 'The "Blue" and the "Red".'),
        (" The players ' decisions and the boss 's . ", "The players' decisions and the boss's."),
        (" Between 1990 – 95 , and then – later – 40 % of them . ",
         "Between 1990–95, and then – later – 40% of them."),
        (" Either and / or both . ", "Either and/or both."),
        (" It cost £ 3 [ sic ] . ", "It cost £3 [sic]."),
        (" Nothing to do here", "Nothing to do here"),
        ("", ""),
    ],
)  # fmt: skip
def test_tokens_join_as_they_were_written(tokens: str, written: str) -> None:
    assert detokenize_wikitext(tokens) == written


@pytest.mark.parametrize("heading", [" = Robert Boulter = ", " = = Career = = ", " = = = 2000 – 2005 = = = "])
def test_headings_are_left_out(heading: str) -> None:
    assert is_wikitext_heading(heading)
    assert detokenize_wikitext(heading) == ""


@pytest.mark.parametrize("line", [" x = 4 . ", " a = b = c ", "= not closed"])
def test_equals_signs_in_a_sentence_are_no_heading(line: str) -> None:
    assert not is_wikitext_heading(line)


def test_written_text_is_not_changed() -> None:
    text = "It's a role-playing game (from 1,500 B.C.), \"sold\" for $2.5 million; that's all."
    assert detokenize_wikitext(text) == text

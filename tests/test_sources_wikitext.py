"""Wikitext becomes prose: nothing of templates, tables, files, footnotes and lists is left in a sentence."""

from __future__ import annotations

import time

import pytest

from bertpt.data.corpus.sources.wikitext import plain_text

SENTENCE = "The cat sat on the mat, and it stayed there until the evening."


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''italic'' text is plain.", "Bold and italic text is plain."),
        ("A [[cat]] meets [[Dog|dogs]] in [[:Category:Pets|homes]].", "A cat meets dogs in homes."),
        ("It is seen.<ref>A book, p. 3.</ref> It is known.<ref name=b/>", "It is seen. It is known."),
        ('Before<ref name="x">{{cite|a=<b>}} [[a|b]]</ref> after.', "Before after."),
        ("Never closed.<ref>A note that goes on\nThe next line is text.", "Never closed. The next line is text."),
        ("It rose {{convert|10|km|mi|abbr=on}} in a day.", "It rose 10 km in a day."),
        ("Between {{convert|3|to|5|m|ft}} tall.", "Between 3 to 5 m tall."),
        ("The word {{lang|fr|[[chat|le chat]]}} is French.", "The word le chat is French."),
        ("Aikido ({{lang-ja|合気道}}) is an art.", "Aikido (合気道) is an art."),
        ("Emma ({{IPAc-en|x}}; {{small|born}} 1815) was here.", "Emma (born 1815) was here."),
        ("Emma ({{IPA|x}}) was here.", "Emma was here."),
        ("Emma ({{IPA|x}}, {{IPA|y}}) was here.", "Emma was here."),
        ("Emma (1815{{sfn|A|B}} ) was here.", "Emma (1815) was here."),
        ("It is {{a|{{b|{{c}}|x}}|{{d}}}} nested.", "It is nested."),
        ("See [http://example.com the label] and more [http://example.com].", "See the label and more."),
        ("Fish &amp; chips&nbsp;cost 3&ndash;4 pounds.", "Fish & chips cost 3–4 pounds."),
        ("The number <math>x</math> is <math>\\frac{1}{2}</math> here.", "The number x is here."),
        (
            "A tag <nowiki>kept|as</nowiki> is shown.",
            "A tag kept|as is shown.",
        ),
        ("One <!-- hidden [[File:x --> line.", "One line."),
        ("Two<br />lines and <span style='x'>a span</span>.", "Two lines and a span."),
        ("Both lines\nare one paragraph.\n\nThis is another.", "Both lines are one paragraph.\nThis is another."),
        ("#REDIRECT [[Other]]", ""),
    ],
)
def test_markup_becomes_prose(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    "removed",
    [
        "[[File:Cat.jpg|thumb|right|200px|A [[cat]] with ''fur'' and [[hat|a hat]] [http://x.org label].]]",
        "[[Image:Cat.jpg|thumb|A cat<ref>[[Book]]</ref>]]",
        "[[Category:Cats|*]]",
        "[[fr:Chat]]",
        "{| class=wikitable\n|-\n| a [[b|c]] || {{d|e}}\n{|\n| inner\n|}\n! head\n|}",
        "{{Infobox cat\n| name = [[Tom]]\n| image = [[File:a.jpg|20px]]\n| x = {{y|{{z}}}}\n}}",
        "<gallery>\nFile:a.jpg|A caption\n</gallery>",
        "* an item\n** another item\n# numbered\n; term\n: indented",
        "== A heading ==",
        "----",
        "<math>\\sum_{i=1}^{n} x_{i}</math>",
        "<syntaxhighlight lang=python>\nprint('{{x}}')\n</syntaxhighlight>",
        "<timeline>\nbar:x from:1 till:2\n</timeline>",
        "__NOTOC__ {{DEFAULTSORT:Cat}}",
        "<references />\n{{reflist|30em}}",
        "Short caption",
    ],
)
def test_what_is_not_prose_leaves_the_paragraphs_around_it(removed: str) -> None:
    assert plain_text(f"{SENTENCE}\n\n{removed}\n\n{SENTENCE}") == f"{SENTENCE}\n{SENTENCE}"


def test_footnote_sections_end_at_the_next_heading_of_their_level() -> None:
    markup = (
        f"{SENTENCE}\n==References==\nA note.\n===Books===\nA book is a book.\n==Later==\nIt went on.\n"
        "== ''See also'' ==\nOther things."
    )
    assert plain_text(markup) == f"{SENTENCE}\nIt went on."


def test_file_links_of_other_languages_are_known_by_the_namespaces() -> None:
    markup = f"[[Datei:Katze.jpg|mini|Eine Katze]]\n{SENTENCE}"
    assert plain_text(markup, frozenset({"datei"})) == SENTENCE


@pytest.mark.parametrize("broken", ["{{Infobox\n", "{| class=x\n", "[[File:x.jpg|thumb|never closed\n"])
def test_what_never_closes_takes_its_own_line_only(broken: str) -> None:
    assert plain_text(f"{broken}{SENTENCE}") == SENTENCE


@pytest.mark.parametrize("closing", ["}}", "|}", "]]", "''", "</ref>"])
def test_stray_closing_marks_do_not_eat_text(closing: str) -> None:
    assert plain_text(f"{SENTENCE} {closing} {SENTENCE}").count("until the evening") == 2


@pytest.mark.parametrize("unit", ["{{a|", "[[a|", "{|\n|", "<ref>", "''", "[[File:a|", "{{lang|x|", "("])
def test_time_grows_linearly_with_nesting(unit: str) -> None:
    started = time.perf_counter()
    plain_text(unit * 20_000 + SENTENCE)
    plain_text((unit + "x ") * 10_000 + "}}" * 10_000 + "]]" * 10_000 + SENTENCE)
    assert time.perf_counter() - started < 5

"""MediaWiki markup to plain paragraphs.

Templates, tables and links nest without bound, and a general parser is slow on them, so linear scanners
take them out first; ``mwparserfromhell`` then reads what is left (bold, tags, entities, external links).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import mwparserfromhell
from mwparserfromhell.parser import ParserError

FILE_NAMESPACES = frozenset({"file", "image", "media", "category"})
FOOTNOTE_SECTIONS = frozenset(
    {
        *("see also", "references", "external links", "notes", "further reading", "bibliography", "footnotes"),
        *("citations", "sources", "notes and references", "references and notes", "works cited", "gallery"),
        "literature",
    }
)

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOWIKI = re.compile(r"<nowiki\s*>(.*?)</nowiki\s*>", re.DOTALL | re.IGNORECASE)
_DROPPED = (
    "ref|references|gallery|math|chem|table|timeline|score|imagemap|inputbox|syntaxhighlight|source|pre|hiero|graph|"
    "mapframe|templatestyles|section|categorytree|indicator|charinsert|ce|includeonly"
)
_DROPPED_EMPTY = re.compile(rf"<(?:{_DROPPED})\b[^<>]*/>", re.IGNORECASE)
_DROPPED_TAG = re.compile(rf"<({_DROPPED})\b[^<>]*>(?:(?!<\1\b).)*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_UNCLOSED = re.compile(rf"<(?:{_DROPPED})\b[^\n]*|</(?:{_DROPPED})\s*>", re.IGNORECASE)
_SIMPLE_MATH = re.compile(r"<math\b[^<>]*>\s*([\w ,.()+=-]{1,20}?)\s*</math\s*>", re.IGNORECASE)
_BREAK = re.compile(r"<br\b[^<>]*>|&nbsp;|\u00a0", re.IGNORECASE)
_ANY_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,300})?/?>")
_MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
_HEADING = re.compile(r"\s*(={1,6})\s*(.+?)\s*=+\s*\Z")
_BARE_URL = re.compile(r"\[?(?:https?|ftp)://[^\s\]]+\]?")
_BRACES = re.compile(r"\{\{|\}\}|^[ \t:]*\{\||^[ \t]*\|\}(?!\})", re.MULTILINE)
_LINKS = re.compile(r"\[\[|\]\]")
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,10})*\Z")
_ENDED = re.compile(r"[.!?…。！？।؟][\"'”’»)\]]*\Z")
_SHORT = 40  # characters
_DEEPEST_KEPT = 20


def _convert(arguments: str) -> str:
    """``{{convert|10|km|mi}}`` -> ``10 km``; ranges as ``{{convert|3|to|5|m}}``."""
    values = [value.strip() for value in arguments.split("|") if "=" not in value]
    if len(values) > 3 and values[1] in {"-", "–", "to", "and", "by", "x", "or"}:
        joint = "–" if values[1] in "-–" else f" {values[1]} "
        return f"{values[0]}{joint}{values[2]} {values[3]}"
    return " ".join(values[:2])


def _last_of(count: int) -> Callable[[str], str]:
    def take(arguments: str) -> str:
        values = [value for value in _outside_links(arguments) if not re.match(r"\s*\w+\s*=", value)]
        return values[count - 1].strip() if len(values) >= count else ""

    return take


def _outside_links(arguments: str) -> list[str]:
    """Split at the bars that stand outside ``[[ ]]``."""
    return re.split(r"\|(?![^\[\]]*\]\])", arguments)


# Templates that are words of a sentence; all others are removed.
_INLINE: dict[str, Callable[[str], str]] = {
    "convert": _convert,
    "cvt": _convert,
    "lang": _last_of(2),
    "transl": _last_of(2),
    "transliteration": _last_of(2),
    "nowrap": _last_of(1),
    "nobr": _last_of(1),
    "nihongo": _last_of(1),
    "abbr": _last_of(1),
    "sic": _last_of(1),
    "circa": lambda arguments: f"c. {_last_of(1)(arguments)}".rstrip(),
    "c.": lambda arguments: f"c. {_last_of(1)(arguments)}".rstrip(),
    "as of": lambda arguments: "As of " + " ".join(v for v in arguments.split("|") if "=" not in v),
    "ndash": lambda _: "–",
    "mdash": lambda _: "—",
    "spaced ndash": lambda _: " – ",
    "snd": lambda _: " – ",
    "spnd": lambda _: " – ",
    "'": lambda _: "'",
    "'s": lambda _: "'s",
    "nbsp": lambda _: " ",
    "sup": _last_of(1),
    "sub": _last_of(1),
    "sc": _last_of(1),
    "small": _last_of(1),
    "smallcaps": _last_of(1),
    "iast": _last_of(1),
    "val": _last_of(1),
    "us$": lambda arguments: f"US${_last_of(1)(arguments)}",
    "em": _last_of(1),
    "ship": lambda arguments: " ".join(v.strip() for v in arguments.split("|")[:2]).strip(),
    "uss": lambda arguments: f"USS {_last_of(1)(arguments)}",
    "hms": lambda arguments: f"HMS {_last_of(1)(arguments)}",
}


def _template(content: str) -> str:
    name, _, arguments = content.partition("|")
    name = name.strip().replace("_", " ").lower()
    if name.startswith("lang-"):
        return _last_of(1)(arguments)
    keep = _INLINE.get(name)
    return keep(arguments) if keep else ""


def _remains(pieces: list[str]) -> str:
    """What stays of a construct that never closes: all but its first line."""
    return "".join(pieces).partition("\n")[2]


def remove_templates(text: str) -> str:
    """Remove tables and templates of any depth in one pass; inline templates leave their words."""
    frames: list[list[str]] = [[]]
    kinds = [""]
    position = 0
    for mark in _BRACES.finditer(text):
        frames[-1].append(text[position : mark.start()])
        position = mark.end()
        sign = mark.group().lstrip(" \t:")
        if sign in ("{{", "{|"):
            frames.append([])
            kinds.append(sign)
        elif kinds[-1] == {"}}": "{{", "|}": "{|"}[sign]:
            kinds.pop()
            content = frames.pop()
            if sign == "}}" and len(frames) < _DEEPEST_KEPT:
                frames[-1].append(_template("".join(content)))
        elif sign == "|}" and "{|" in kinds:  # a template left open inside a table ends with it
            while kinds.pop() != "{|":
                frames.pop()
            frames.pop()
    frames[-1].append(text[position:])
    while len(frames) > 1:
        remains = _remains(frames.pop())
        frames[-1].append("\n" + remains)
    return "".join(frames[0])


def _label(content: str, dropped: frozenset[str]) -> str:
    target, bar, label = content.partition("|")
    prefix, colon, _ = target.strip().partition(":")
    if colon and prefix and (prefix.strip().lower() in dropped or _INTERLANGUAGE.match(prefix)):
        return ""
    return label.rpartition("|")[2] if bar else target.strip().lstrip(":")


def replace_links(text: str, dropped: frozenset[str] = FILE_NAMESPACES) -> str:
    """Replace ``[[target|label]]`` by its label; links into the ``dropped`` namespaces leave nothing."""
    frames: list[list[str]] = [[]]
    position = 0
    for mark in _LINKS.finditer(text):
        frames[-1].append(text[position : mark.start()])
        position = mark.end()
        if mark.group() == "[[":
            frames.append([])
        elif len(frames) > 1:
            content = "".join(frames.pop())
            if len(frames) < _DEEPEST_KEPT:
                frames[-1].append(_label(content, dropped))
    frames[-1].append(text[position:])
    while len(frames) > 1:
        content = "".join(frames.pop())
        is_file = content.partition(":")[0].strip().lower() in dropped
        frames[-1].append("\n" + content.partition("\n")[2] if is_file else content)
    return "".join(frames[0])


def _paragraph_lines(text: str) -> Iterator[str]:
    """Lines of prose, an empty one between paragraphs; headings, lists and footnote sections are gone."""
    hidden = 0
    for line in text.split("\n"):
        heading = _HEADING.match(line)
        if heading:
            level = len(heading.group(1))
            if not hidden or level <= hidden:
                hidden = level if heading.group(2).strip("' \t").lower() in FOOTNOTE_SECTIONS else 0
            yield ""
        elif hidden:
            continue
        elif line.startswith(("*", "#", ":", ";", "|", "!", "----")):
            yield ""
        elif line.startswith(" "):  # preformatted: code and drawings, unless it ends as a sentence does
            yield line if line.rstrip().endswith((".", "!", "?", '"', "”")) else ""
        else:
            yield line


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        if line.strip():
            held.append(line.strip())
        elif held:
            yield " ".join(held)
            held = []
    if held:
        yield " ".join(held)


_TIDY: list[tuple[re.Pattern[str], str]] = [
    (_BARE_URL, ""),
    (re.compile(r"'{2,}"), ""),
    (re.compile(r"\[{2,}|\]{2,}|\{{2,}|\}{2,}|\[\d{0,3}\]"), ""),
    (re.compile(r"[ \t\u00a0\u2009\u202f]+"), " "),
    (re.compile(r"([(\[])(?:\s*[,;:/|–-]|\s)+"), r"\1"),
    (re.compile(r"(?:\s|[,;:/|–])+([)\]])"), r"\1"),
    (re.compile(r"\(\s*(?:or|and)?\s*\)|\[\s*\]"), ""),
    (re.compile(r" +([,.;)])(?![0-9A-Za-z.])"), r"\1"),
    (re.compile(r"([,;:])(?:\s*[,;])+(?!\S)"), r"\1"),
    (re.compile(r"\A[\s,;:.)|]+(?=\s)"), ""),
    (re.compile(r"(?<!\.)\.(?: \.)+(?!\.)"), "."),
    (re.compile(r" {2,}"), " "),
]


def _tidy(paragraph: str) -> str:
    for pattern, into in _TIDY:
        paragraph = pattern.sub(into, paragraph)
    return paragraph.strip()


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph says something; short ones without an end are captions and labels."""
    return any(sign.isalnum() for sign in paragraph) and (len(paragraph) >= _SHORT or bool(_ENDED.search(paragraph)))


def _strip_rest(text: str) -> str:
    try:
        stripped = str(mwparserfromhell.parse(text).strip_code(normalize=True, collapse=False))
    except ParserError:
        stripped = text
    return _MAGIC_WORD.sub("", _ANY_TAG.sub("", stripped))


def _hide(match: re.Match[str]) -> str:
    return re.sub(r"[\[\]{}|'=*#<>]", lambda sign: f"&#{ord(sign.group())};", match.group(1))


def plain_text(markup: str, dropped: frozenset[str] = FILE_NAMESPACES) -> str:
    """Paragraphs of an article, one a line.

    Args:
        markup: wikitext.
        dropped: lower-case names of the namespaces whose links show no text (files, categories).
    """
    text = _COMMENT.sub("", markup)
    text = _NOWIKI.sub(_hide, text)
    text = _SIMPLE_MATH.sub(r"\1", text)  # a variable's name in a sentence
    text = _DROPPED_EMPTY.sub("", text)
    text = _DROPPED_TAG.sub("", text)
    text = _UNCLOSED.sub("", text)
    text = _BREAK.sub(" ", text)
    text = replace_links(remove_templates(text), dropped)
    prose = "\n\n".join(_paragraphs(_paragraph_lines(text)))
    tidied = (_tidy(" ".join(part.split("\n"))) for part in _strip_rest(prose).split("\n\n"))
    return "\n".join(part for part in tidied if _is_prose(part))

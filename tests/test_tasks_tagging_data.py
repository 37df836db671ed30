"""Sentences of tagged words: file forms and their traps, schemes of entities, windows; faults have file and line."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interop_helpers import TOKENS
from task_helpers import plain_task

from bertpt.config import validate_finetune
from bertpt.config.finetune.tagging import TaggingConfig
from bertpt.data.tokenizer.wordpiece import Normalising, WordPieceTokenizer, build
from bertpt.errors import RequestError
from bertpt.tasks.examples import read_splits
from bertpt.tasks.kinds import TASKS
from bertpt.tasks.tagging.iob import complete, detect, entities, legal, to_iob2
from bertpt.tasks.tagging.tagged import read_sentences
from bertpt.tasks.tagging.words import encode_words, windows
from bertpt.tasks.task import Examples


def config_of(path: Path, task: str = "ner", **data: Any) -> TaggingConfig:
    given_ = {"train": str(path), "dev": str(path), "test": None} | data
    found = validate_finetune(plain_task(path.parent, task=task, data=given_))
    assert isinstance(found, TaggingConfig)
    return found


def read(path: Path, task: str = "ner", **data: Any) -> Examples:
    return read_sentences(path, config_of(path, task, **data).data, entities=task == "ner")


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def pairs(found: Examples) -> list[list[tuple[str, str]]]:
    assert not found.faults
    return [list(zip(row.words, row.tags, strict=True)) for row in found.rows]


# --- columns --------------------------------------------------------------------------------------------------

TWO = [[("Ada", "B-PER"), ("ran", "O")], [("Rome", "B-LOC")]]


@pytest.mark.parametrize(
    "text",
    [
        "Ada B-PER\nran O\n\nRome B-LOC\n\n",
        "Ada B-PER\nran O\n\nRome B-LOC",  # no end of line, no blank line at the end
        "\n\nAda B-PER\nran O\n \t\nRome B-LOC\n\n\n",  # lines of spaces
        "Ada NNP I-NP B-PER\nran VB I-VP O\n\nRome NNP I-NP B-LOC\n",
        "Ada\tB-PER\nran\tO\n\nRome\tB-LOC\t\n",  # a trailing tab
        "Ada  B-PER \nran\t O\n\nRome B-LOC\n",
        "\ufeffAda B-PER\r\nran O\r\n\r\nRome B-LOC\r\n",
        "-DOCSTART- -X- O O\n\nAda X X B-PER\nran X X O\n\n-DOCSTART- -X- -X- O\nRome X X B-LOC\n",
        "-DOCSTART-\nAda B-PER\nran O\n\u3000\nRome B-LOC\n",
    ],
)
def test_columns_between_spaces_or_tabs(tmp_path: Path, text: str) -> None:
    assert pairs(read(put(tmp_path / "x.txt", text))) == TWO


def test_document_marks_are_counted_and_end_a_sentence(tmp_path: Path) -> None:
    found = read(put(tmp_path / "x.conll", "-DOCSTART- O\na O\n-DOCSTART- O\nb B-X\n-DOCSTART-s O\n"))
    assert [row.words for row in found.rows] == [("a",), ("b", "-DOCSTART-s")]
    assert found.counts["documents"] == 2


def test_words_with_spaces_stand_between_tabs_and_invisible_words_are_words(tmp_path: Path) -> None:
    path = put(tmp_path / "x.conll", "New York\tB-LOC\n\u200b\tO\n\u00a0\tO\n# 1\tO\n")
    assert pairs(read(path)) == [[("New York", "B-LOC"), ("\u200b", "O"), ("\u00a0", "O"), ("# 1", "O")]]
    path = put(tmp_path / "y.conll", "a O\n\u200b O\n\u00a0 B-X\n")
    assert [row.words for row in read(path).rows] == [("a", "\u200b", "\u00a0")]


def test_comments_are_words_unless_it_is_said(tmp_path: Path) -> None:
    path = put(tmp_path / "x.conll", "# O\na B-X\n")
    assert pairs(read(path)) == [[("#", "O"), ("a", "B-X")]]
    path = put(tmp_path / "x.conll", "# id 1 domain=en\na O\nb B-X\n")
    with_comments = read(path, comments=True)
    assert pairs(with_comments) == [[("a", "O"), ("b", "B-X")]]
    assert with_comments.counts["comments"] == 1


def test_other_columns_by_number(tmp_path: Path) -> None:
    path = put(tmp_path / "x.conll", "1 a N O\n2 b V B-X\n")
    assert pairs(read(path, "tagging", token=1, tag=2)) == [[("a", "N"), ("b", "V")]]
    assert pairs(read(path, token=-3, tag=-1)) == [[("a", "O"), ("b", "B-X")]]


CONLLU = (
    "# text = don't go\n1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tdo\tdo\tAUX\tVB\t_\t3\taux\t_\t_\n"
    "2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_\n2.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_\n"
    "3\t1 000\t_\tNUM\tCD\t_\t0\troot\t_\t_\n\n\n# newdoc\n1\t#\t#\tSYM\tSYM\t_\t0\troot\t_\t_"
)


def test_conllu_ranges_empty_nodes_comments_and_a_missing_end(tmp_path: Path) -> None:
    path = put(tmp_path / "x.conllu", CONLLU)
    found = read(path, "tagging")
    assert pairs(found) == [[("do", "AUX"), ("n't", "PART"), ("1 000", "NUM")], [("#", "SYM")]]
    assert (found.counts["ranges"], found.counts["empty_nodes"]) == (1, 1)
    assert found.rows[0].lines == (3, 4, 6)
    assert pairs(read(path, "tagging", tag="xpos"))[0][0] == ("do", "VB")
    assert pairs(read(path, "tagging", tag="deprel", token="lemma"))[1] == [("#", "root")]
    assert pairs(read(path, "tagging", tag=5))[1] == [("#", "_")]  # no features is a label of its own


def test_json_lines_and_parquet(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tokens": ["null", "b"], "tags": ["B-X", "O"]}, {"tokens": [], "tags": []}, {"tokens": ["c"], "tags": ["O"]},
    ]  # fmt: skip
    path = put(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for found in (read(path), read(tmp_path / "x.parquet")):
        assert pairs(found) == [[("null", "B-X"), ("b", "O")], [("c", "O")]]
        assert found.counts["empty"] == 1
    path = put(tmp_path / "y.jsonl", json.dumps({"words": ["a"], "pos": ["N"]}))
    assert pairs(read(path, "tagging", token="words", tag="pos")) == [[("a", "N")]]


@pytest.mark.parametrize(
    ("name", "text", "task", "fault"),
    [
        ("x.conll", "a X O\nb O\n", "ner", ":2: 2 columns, the first line has 3"),
        ("x.conll", "a O\n\n# x y z\n", "ner", ":3: 4 columns, the first line has 2; where such lines are comments"),
        ("x.conll", "a\tO\nb\t\n", "ner", ":2: 1 column, the first line has 2"),
        ("x.conll", "a\tO\n\tO\n", "ner", ":2: no word, or no tag"),
        ("x.conll", "a O\nb PER\n", "ner", ":2: tag 'PER': O, B-TYPE or I-TYPE is expected; for types without prefix"),
        ("x.conll", "a O\nb B-\n", "ner", ":2: tag 'B-' has no type"),
        ("x.conllu", "1\ta\t_\tX\n", "tagging", ":1: 4 columns between tabs, CoNLL-U has 10"),
        ("x.conllu", "1\ta\t_\t_\t_\t_\t_\t_\t_\t_\n", "tagging", ":1: upos is _, so there is no tag"),
        ("x.conllu", "x\ta\t_\tX\t_\t_\t_\t_\t_\t_\n", "tagging", ":1: id 'x' is no number"),
        (
            "x.conllu", "".join(f"{n}\ta\t_\tX\t_\t_\t_\t_\t_\t_\n" for n in (1, 2, 1)), "tagging",
            ":3: word 1 where 3 is expected; a blank line ends a sentence",
        ),
        ("x.jsonl", '{"tokens": ["a"], "tags": ["O", "O"]}', "ner", ":1: 1 words, 2 tags"),
        ("x.jsonl", '{"tokens": ["a"], "tags": [3]}', "ner", ":1: tags: a list of texts is expected, not [3]"),
        ("x.jsonl", '{"tokens": ["a", ""], "tags": ["O", "O"]}', "ner", ":1: tokens: a list of texts"),
        ("x.jsonl", '{"tokens": ["a"], "ner": ["O"]}', "ner", ":1: no 'tags'; there: tokens, ner"),
        ("x.jsonl", '{"tokens": ["a"], "tags": ["PER"]}', "ner", ":1: word 1: tag 'PER'"),
        ("x.jsonl", "[", "ner", ":1: not JSON"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, name: str, text: str, task: str, fault: str) -> None:
    path = put(tmp_path / name, text)
    [found] = read(path, task).faults
    assert found.startswith(f"{path}{fault}")


@pytest.mark.parametrize(
    ("name", "text", "data", "fault"),
    [
        ("x.conll", "a\nb\n", {}, ":1: one column is read as word and as tag"),
        ("x.conll", "a O\n", {"tag": 2}, "no column 2; the first line has 2"),
        (
            "x.conll",
            b"a O\ncaf\xe9 O\n",
            {},
            "line 2, byte 7: 0xe9 is not valid UTF-8 (invalid continuation byte); convert the file, e.g. iconv",
        ),
        ("x.parquet", "no", {}, "not readable as Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, text: str | bytes, data: dict[str, Any], fault: str
) -> None:
    path = put(tmp_path / name, text)
    with pytest.raises(RequestError, match=str(path)) as caught:
        read(path, **data)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"task": "tagging", "data": {"scheme": "iob1"}}, "data.scheme: iob1: tags of tagging have none"),
        ({"task": "tagging", "train": {"metric": "f1"}}, "train.metric: f1 is none of tagging: set one of accuracy"),
        ({"data": {"format": "conll", "tag": "ner"}}, "data.tag: ner: in conll a column is a number"),
        ({"data": {"format": "jsonl", "token": 0}}, "data.token: 0: JSON lines have names"),
        ({"data": {"format": "conllu", "tag": "pos"}}, "data.tag: pos: the columns of conllu are id, form"),
        ({"head": {"crff": True}}, "head.crff: unknown key; did you mean crf?"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate_finetune(plain_task(tmp_path, **({"task": "ner"} | changes)))
    assert fault in "\n".join(caught.value.faults)


def test_tags_that_train_lacks_are_refused_but_every_type_has_both_its_tags(tmp_path: Path) -> None:
    train = put(tmp_path / "train.conll", "Ada B-PER\nran O\n")
    dev = put(tmp_path / "dev.conll", "Ada B-PER\nByron I-PER\n")
    config = config_of(train, dev=str(dev))
    assert read_splits(TASKS["ner"], config).facts["labels"] == ["B-PER", "I-PER", "O"]
    put(dev, "Ada O\nRome B-LOC\n")
    with pytest.raises(RequestError, match=r"dev\.conll:2: tag 'B-LOC' does not stand in train: B-PER, I-PER, O"):
        read_splits(TASKS["ner"], config)
    put(train, "Ada O\nran O\n")
    with pytest.raises(RequestError, match="no entity"):
        read_splits(TASKS["ner"], config)


# --- schemes --------------------------------------------------------------------------------------------------


@st.composite
def sentences(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    """How many words, and entities in them that do not overlap."""
    found, at = [], draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, 3))
        found.append((draw(st.sampled_from(["PER", "LOC-X"])), at, at + length))
        at += length + draw(st.integers(0, 2))
    return at + draw(st.integers(0, 1)), found


def written(words: int, spans: list[tuple[str, int, int]], scheme: str) -> list[str]:
    """Tags by the definition of the scheme."""
    tags = ["O"] * words
    for kind, begin, end in spans:
        follows = any(other == kind and after == begin for other, _, after in spans)
        for at in range(begin, end):
            first, last = at == begin, at == end - 1
            prefix = {
                "iob1": "B" if first and follows else "I",
                "iob2": "B" if first else "I",
                "bioes": "S" if first and last else "B" if first else "E" if last else "I",
                "bilou": "U" if first and last else "B" if first else "L" if last else "I",
            }[scheme]
            tags[at] = f"{prefix}-{kind}"
    return tags


@settings(deadline=None, max_examples=60)
@given(sentences())
def test_every_scheme_becomes_the_same_iob2(sentence: tuple[int, list[tuple[str, int, int]]]) -> None:
    words, spans = sentence
    expected = written(words, spans, "iob2")
    assert [tuple(each) for each in entities(expected)] == spans
    for scheme, read_as in (("iob1", "iob1"), ("iob2", "iob2"), ("bioes", "bioes"), ("bilou", "bioes")):
        counts: Counter[str] = Counter()
        tags = written(words, spans, scheme)
        assert to_iob2(tags, read_as, counts) == expected
        assert counts["ill_formed"] == 0
        assert counts["converted"] == sum(one != other for one, other in zip(tags, expected, strict=True))
        found = detect([tags])
        assert to_iob2(tags, found) == expected  # whatever the guess is, the entities are these
        assert not spans or found == read_as


def test_conll_2003_as_it_was_published() -> None:
    """IOB1: two neighbours of one type, the second begins with B-; the first with I-."""
    tags = ["I-ORG", "O", "I-MISC", "I-MISC", "B-MISC", "I-PER", "I-ORG", "O"]
    assert detect([tags]) == "iob1"
    assert to_iob2(tags, "iob1") == ["B-ORG", "O", "B-MISC", "I-MISC", "B-MISC", "B-PER", "B-ORG", "O"]


@pytest.mark.parametrize(
    ("scheme", "tags", "expected", "ill_formed"),
    [
        ("iob2", "O I-X I-X I-Y B-X I-X", "O B-X I-X B-Y B-X I-X", 2),
        ("iob1", "B-X I-X B-X O B-Y", "B-X I-X B-X O B-Y", 2),
        ("bioes", "B-X O S-X I-X E-X B-X", "B-X O B-X B-X I-X B-X", 3),
        ("bioes", "B-X B-X E-X", "B-X B-X I-X", 1),
        ("io", "X X O Y X", "B-X I-X O B-Y B-X", 0),
        ("io", "I-X I-X O", "B-X I-X O", 0),
    ],
)
def test_what_a_scheme_forbids_is_repaired_and_counted(scheme: str, tags: str, expected: str, ill_formed: int) -> None:
    counts: Counter[str] = Counter()
    assert to_iob2(tags.split(), scheme, counts) == expected.split()
    assert counts["ill_formed"] == ill_formed


def test_repairs_are_counted_for_the_file(tmp_path: Path) -> None:
    found = read(put(tmp_path / "x.conll", "a O\nb I-X\n\nc B-X\nd B-Y\n"))
    assert pairs(found)[0] == [("a", "O"), ("b", "B-X")]
    assert (found.counts["ill_formed"], found.counts["from_iob2"]) == (1, 1)
    found = read(put(tmp_path / "y.conll", "a PER\nb PER\nc O\n"), scheme="io")
    assert pairs(found) == [[("a", "B-PER"), ("b", "I-PER"), ("c", "O")]]
    [fault] = read(put(tmp_path / "z.conll", "a O\nb E-X\n"), scheme="iob2").faults
    assert "tag 'E-X' is not of data.scheme=iob2" in fault


def test_legal_steps_are_those_of_strict_iob2() -> None:
    labels = sorted(complete({"B-X", "I-Y", "O"}))
    assert labels == ["B-X", "B-Y", "I-X", "I-Y", "O"]
    first, follows = legal(labels)
    for path in itertools.product(range(5), repeat=3):
        tags = [labels[index] for index in path]
        allowed = first[path[0]] and all(follows[one, other] for one, other in itertools.pairwise(path))
        assert allowed == (to_iob2(tags, "iob2") == tags)


# --- rows -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 12).flatmap(lambda room: st.tuples(st.lists(st.integers(1, room), max_size=40), st.just(room))))
def test_each_word_is_predicted_once_where_it_is_furthest_from_the_edges(case: tuple[list[int], int]) -> None:
    lengths, room = case
    found = windows(lengths, room)
    owned = [word for window in found for word in range(window.own_begin, window.own_end)]
    assert owned == list(range(len(lengths)))
    for window in found:
        assert sum(lengths[window.begin : window.end]) <= room
        assert window.begin <= window.own_begin < window.own_end <= window.end

    def nearer(window: Any, word: int) -> float:
        before = sum(lengths[window.begin : word]) if window.begin else np.inf
        after = sum(lengths[word + 1 : window.end]) if window.end < len(lengths) else np.inf
        return float(min(before, after))

    for window in found:
        for word in range(window.own_begin, window.own_end):
            others = [nearer(other, word) for other in found if other.begin <= word < other.end]
            assert nearer(window, word) >= max(others)


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(build(TOKENS, Normalising()))


def test_each_word_has_one_marked_token_whatever_it_is(tokenizer: WordPieceTokenizer) -> None:
    """Zero-width words, an accent alone, emoji, a word of 120 letters, one of many pieces, one with spaces."""
    words = ["x", "\u200b", "x", "\u0301", "😀", "a" * 120, "." * 300, "ab c", "\ufeff", "[SEP]", "日本"]
    encoded = encode_words(tokenizer, [words, ["a"], ["\u200b"]], 16)
    assert encoded.words.tolist() == [11, 1, 1]
    assert encoded.without_pieces == 4
    marks = encoded.rows.marks
    assert marks is not None
    assert len(marks) == 13
    firsts = []
    for row in range(len(encoded.rows)):
        batch = encoded.batch(np.array([row]))
        assert batch.token_positions is not None
        assert batch.tokens <= 16
        assert batch.input_ids[0] == tokenizer.cls_id
        assert batch.input_ids[-1] == tokenizer.sep_id
        firsts += batch.input_ids[batch.token_positions].tolist()
    pieces = tokenizer.encode_sentences([*words, "a", "\u200b"])
    assert firsts == [own[0] if own else tokenizer.unk_id for own in pieces]
    assert tokenizer.sep_id not in firsts


def test_a_sentence_of_600_words_is_covered_by_windows(tokenizer: WordPieceTokenizer) -> None:
    words = [TOKENS[5 + index % 26] * (1 + index % 3) for index in range(600)]
    encoded = encode_words(tokenizer, [words, ["a", "b"]], 48)
    assert encoded.cut == 1
    assert encoded.full[0] == 2 + sum(len(word) for word in words)
    labels = encoded.labels
    assert labels is not None
    assert labels[0].tolist() == [True, False]
    assert labels[1:-2].any().item() is False
    assert labels[-2:].tolist() == [[False, True], [True, True]]
    batch = encoded.batch(np.arange(len(encoded.rows)))
    assert batch.token_positions is not None
    assert len(batch.token_positions) == 602
    expected = [own[0] for own in tokenizer.encode_sentences([*words, "a", "b"])]
    assert batch.input_ids[batch.token_positions].tolist() == expected

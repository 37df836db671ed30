"""The articles of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from bertpt.data.corpus.lines import read_lines
from bertpt.data.tokenizer.wordpiece import clean
from bertpt.errors import RequestError
from bertpt.predict.texts import Text, refuse
from bertpt.tasks.summarization.articles import Article, sentence_spans
from bertpt.tasks.tables import is_json_lines, read_json_lines
from bertpt.tasks.task import Facts


def read_given(
    arguments: Sequence[str] | None, file: Path | None, stdin: BinaryIO, facts: Facts, *, jsonl: bool = False
) -> list[Article]:
    """Articles given as arguments, else in ``file``, else in ``stdin``, split as those that the run was trained on.

    A file is one article, or one a line where its name ends in ``.jsonl``. Line ends count as one character, as
    Python reads text.

    Args:
        arguments: an article each.
        file: of text, or JSON lines whose column is that of the training data.
        stdin: read when there is neither.
        facts: of the run.
        jsonl: ``stdin`` and ``file`` are JSON lines, whatever the name.

    Raises:
        RequestError: arguments and a file, a file that cannot be read, or a line that is no article.
    """
    if arguments and file is not None:
        raise RequestError(f"--file: {file}: articles were given as arguments too; give one of them")
    if arguments:
        texts = [Text(f"argument {number}", clean(text)) for number, text in enumerate(arguments, 1)]
    else:
        name = "stdin" if file is None else str(file)
        lines = read_lines(stdin if file is None else file, name, replaceable=False)
        if jsonl or (file is not None and is_json_lines(file)):
            column = facts["article"] if isinstance(facts["article"], str) else "article"
            table = read_json_lines(name, lines, [column], lists=True)
            refuse(table.faults)
            texts = [Text(row.place, row.cells[0]) for row in table.rows]
        else:
            texts = [Text(name, "\n".join(lines))]
    return [
        Article(
            place,
            text,
            sentence_spans(text, language=facts["language"], mode=facts["sentences"], headline=facts["headline"]),
        )
        for place, text in texts
    ]

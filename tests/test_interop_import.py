"""Importing models of transformers: equal numbers in every form of the files, one line for every fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interop_helpers import (
    SIZES,
    TOKENS,
    WEIGHTS,
    as_bin,
    assert_same,
    change_config,
    change_weights,
    renamed,
    save_theirs,
    shard,
    their_model,
    their_outputs,
)
from safetensors.torch import load_file
from torch import Tensor

from bertpt.cli.main import run
from bertpt.errors import RequestError
from bertpt.interop.check import outputs, sample_rows
from bertpt.interop.import_ import import_model
from bertpt.interop.pretrained import build, load_pretrained

Capture = pytest.CaptureFixture[str]
PARTS = {
    "BertForPreTraining": ({"mlm", "nsp"}, True),
    "BertForMaskedLM": ({"mlm"}, False),
    "BertForNextSentencePrediction": ({"nsp"}, True),
    "BertModel": (set(), True),
}


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertForPreTraining on disk; tests change copies of it."""
    return save_theirs(their_model("BertForPreTraining"), tmp_path_factory.mktemp("theirs") / "full")


@pytest.fixture
def copy(full: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(full, tmp_path / "theirs"))


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("architecture", PARTS)
def test_an_imported_model_says_what_it_said_in_transformers(tmp_path: Path, architecture: str, act: str) -> None:
    theirs = their_model(architecture, hidden_act=act)
    done = import_model(save_theirs(theirs, tmp_path / "theirs"), tmp_path / "ours", say=quiet)
    pretrained = load_pretrained(tmp_path / "ours")
    assert (set(pretrained.heads), pretrained.pooler) == PARTS[architecture]
    assert pretrained.tokens == TOKENS
    rows = sample_rows(pretrained)
    assert_same(outputs(pretrained, rows), their_outputs(theirs, rows), atol=1e-5)
    parts = {"encoder", *pretrained.heads, *(["pooler"] if pretrained.pooler else [])}
    assert set(done.found) == parts
    assert set(done.absent) == {"encoder", "pooler", "mlm", "nsp"} - parts


def test_every_newly_initialised_tensor_is_listed(tmp_path: Path) -> None:
    source = save_theirs(their_model("BertModel"), tmp_path / "theirs")
    text = "\n".join(import_model(source, tmp_path / "ours", say=quiet).lines())
    _, new = build(load_pretrained(tmp_path / "ours"), nsp=True)
    heads = {name for name in their_model("BertForPreTraining").state_dict() if name.startswith("cls.")}
    assert set(new) == {name for name in heads if ".decoder." not in name}
    assert all(name in text for name in new)
    assert "absent: masked-word head (mlm)" in text


FORMS: dict[str, Callable[[Path], None]] = {
    "old norm names": lambda d: change_weights(
        d, lambda t: renamed(t, ("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    ),
    "no prefix": lambda d: change_weights(d, lambda t: {n.removeprefix("bert."): x for n, x in t.items()}),
    "wrapped": lambda d: change_weights(d, lambda t: {f"module.{n}": x for n, x in t.items()}),
    "decoder stored again": lambda d: change_weights(
        d,
        lambda t: t | {
            "cls.predictions.decoder.weight": t["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": t["cls.predictions.bias"],
        },
    ),
    "bias of the decoder alone": lambda d: change_weights(
        d, lambda t: renamed(t, ("cls.predictions.bias", "cls.predictions.decoder.bias"))
    ),
    "position ids": lambda d: change_weights(d, lambda t: t | {"bert.embeddings.position_ids": torch.arange(48)[None]}),
    "bin": as_bin,
    "sharded": shard,
    "sharded bin": lambda d: shard(d, "pytorch_model"),
    "no model type": lambda d: change_config(d, model_type=..., architectures=...),
    "double precision": lambda d: change_weights(d, lambda t: {n: x.double() for n, x in t.items()}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_files_gives_equal_tensors(full: Path, copy: Path, tmp_path: Path, form: str) -> None:
    FORMS[form](copy)
    import_model(copy, tmp_path / "ours", say=quiet)
    found, wanted = load_pretrained(tmp_path / "ours"), load_pretrained(full)
    assert found.weights.keys() == wanted.weights.keys()
    assert_same(found.weights, wanted.weights)
    assert (found.heads, found.pooler, found.model) == (wanted.heads, wanted.pooler, wanted.model)


def test_a_file_from_before_zip_archives_is_read(full: Path, copy: Path, tmp_path: Path) -> None:
    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (copy / WEIGHTS).unlink()
    assert_same(load_pretrained(copy).weights, load_pretrained(full).weights)


def test_padded_rows_of_the_vocabulary_are_left_out_and_said(tmp_path: Path) -> None:
    theirs = their_model("BertForPreTraining", vocab_size=64)
    source = save_theirs(theirs, tmp_path / "theirs")
    done = import_model(source, tmp_path / "ours", say=quiet)
    pretrained = load_pretrained(tmp_path / "ours")
    assert (pretrained.vocab_size, len(TOKENS)) == (len(TOKENS), 60)
    assert "4 rows of the token embedding past the vocabulary of 60 left out" in "\n".join(done.lines())
    rows = sample_rows(pretrained)
    wanted = their_outputs(theirs, rows)
    assert_same(outputs(pretrained, rows), wanted | {"mlm_logits": wanted["mlm_logits"][:, :60]}, atol=1e-5)


# --- tokenizers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_comes_along(copy: Path, tmp_path: Path, kept: str, lowercase: bool) -> None:
    for path in copy.glob("*token*"):
        path.unlink()
    from bertpt.data.tokenizer import wordpiece

    tokens = [*TOKENS, "É", "##É"]
    change_config(copy, vocab_size=len(tokens))
    rows = torch.zeros(2, 24)
    change_weights(
        copy,
        lambda t: t | {
            "bert.embeddings.word_embeddings.weight": torch.cat([t["bert.embeddings.word_embeddings.weight"], rows]),
            "cls.predictions.bias": torch.cat([t["cls.predictions.bias"], torch.zeros(2)]),
        },
    )  # fmt: skip
    wordpiece.save(copy, tokens, wordpiece.Normalising(lowercase, lowercase))
    (copy / ({"tokenizer.json", "vocab.txt"} - {kept}).pop()).unlink()
    import_model(copy, tmp_path / "ours", say=quiet)
    tokenizer = load_pretrained(tmp_path / "ours").open_tokenizer()
    assert tokenizer.tokens == tokens
    expected = ["the", "e"] if lowercase else ["the", "É"]
    assert [tokenizer.token(i) for i in tokenizer.encode_sentences(["the É"])[0]] == expected


def test_a_vocabulary_alone_may_be_said_to_be_cased(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (copy / name).unlink()
    for option, lowercase in (([], True), (["--cased"], False), (["--uncased"], True)):
        assert run(["import", str(copy), str(tmp_path / "ours"), "--overwrite", *option]) == 0
        assert load_pretrained(tmp_path / "ours").normalising.lowercase is lowercase
        assert f"vocab.txt alone: text is {'' if lowercase else 'not '}lower-cased" in capsys.readouterr().out


# --- faults ---------------------------------------------------------------------------------------------------------


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _truncated_bin(directory: Path) -> None:
    as_bin(directory)
    _truncated(directory / "pytorch_model.bin")


def _code(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    torch.save({"bert": Path("x")}, directory / "pytorch_model.bin")


def _escape(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    index = {"weight_map": {"bert.pooler.dense.bias": "../other/model.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _lost_shard(directory: Path) -> None:
    shard(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()


def _weights(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Path], None]:
    return lambda directory: change_weights(directory, change)


def _without(*names: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()

    return change


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: change_config(directory, **changes)


QUERY = "bert.encoder.layer.1.attention.self.query.bias"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "wrong key": (_weights(lambda t: renamed(t, ("pooler.dense.bias", "pooler.dense.b"))),
                  "missing: bert.pooler.dense.bias; unexpected: bert.pooler.dense.b"),
    "missing key": (_weights(lambda t: {n: x for n, x in t.items() if n != QUERY}), f"missing: {QUERY}"),
    "head of a task": (_weights(lambda t: t | {"classifier.bias": torch.zeros(2)}), "unexpected: classifier.bias"),
    "half of a head": (_weights(lambda t: {n: x for n, x in t.items() if n != "cls.seq_relationship.bias"}),
                       "missing: cls.seq_relationship.bias"),
    "wrong shape": (_weights(lambda t: t | {QUERY: torch.zeros(23)}), f"shape: {QUERY} [23] in place of [24]"),
    "integers": (_weights(lambda t: t | {QUERY: torch.zeros(24, dtype=torch.int8)}), "no floating-point numbers"),
    "not finite": (_weights(lambda t: t | {QUERY: torch.full((24,), torch.nan)}), f"not finite: {QUERY}"),
    "two for one": (_weights(lambda t: t | {"embeddings.LayerNorm.gamma": torch.ones(24)}), "two tensors for one"),
    "decoder not tied": (_weights(lambda t: t | {"cls.predictions.decoder.weight": torch.ones(60, 24)}), "tied"),
    "truncated": (lambda d: _truncated(d / WEIGHTS), "damaged or no safetensors file"),
    "corrupted": (lambda d: (d / WEIGHTS).write_bytes(b"\xff" * 4000) and None, "damaged or no safetensors file"),
    "empty": (lambda d: (d / WEIGHTS).write_bytes(b"") and None, "damaged or no safetensors file"),
    "truncated bin": (_truncated_bin, "damaged, or holds more than tensors"),
    "code in a bin": (_code, "damaged, or holds more than tensors"),
    "index to elsewhere": (_escape, "is not a file beside it"),
    "lost shard": (_lost_shard, "model-00002-of-00002.safetensors"),
    "no weights": (_without(WEIGHTS), "neither model.safetensors nor pytorch_model.bin"),
    "no config": (_without("config.json"), "no config.json"),
    "no tokenizer": (_without("tokenizer.json", "vocab.txt"), "neither tokenizer.json nor vocab.txt"),
    "damaged config": (lambda d: _truncated(d / "config.json"), "not readable as JSON"),
    "layers": (_config(num_hidden_layers=3), "num_hidden_layers is 3, the weights hold 2"),
    "width": (_config(hidden_size=48), "hidden_size is 48, the weights hold 24"),
    "feed-forward": (_config(intermediate_size=41), "intermediate_size is 41, the weights hold 40"),
    "positions": (_config(max_position_embeddings=512), "max_position_embeddings is 512, the weights hold 48"),
    "segments": (_config(type_vocab_size=3), "type_vocab_size is 3, the weights hold 2"),
    "vocabulary": (_config(vocab_size=61), "vocab_size is 61, the weights hold 60"),
    "small vocabulary": (_config(vocab_size=59), "the tokenizer has 60 entries, config.json a vocab_size of 59"),
    "heads": (_config(num_attention_heads=5), "num_attention_heads: 5 does not divide hidden_size 24"),
    "activation": (_config(hidden_act="relu"), "hidden_act: 'relu' is not one of 'gelu' or 'gelu_new'"),
    "decoder": (_config(is_decoder=True), "is_decoder is True, only False is supported"),
    "positions of another kind": (_config(position_embedding_type="relative_key"), "only 'absolute' is supported"),
    "other model": (_config(model_type="roberta"), "model_type is 'roberta', only 'bert' is supported"),
    "said untied": (_config(tie_word_embeddings=False), "tie_word_embeddings is False"),
    "missing size": (_config(hidden_size=...), "hidden_size is missing"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_exit_2_and_nothing_written(
    copy: Path, tmp_path: Path, capsys: Capture, fault: str
) -> None:
    change, says = FAULTS[fault]
    change(copy)
    before = sorted(tmp_path.rglob("*"))
    assert run(["import", str(copy), str(tmp_path / "new" / "ours")]) == 2
    caught = capsys.readouterr()
    lines = caught.err.rstrip("\n").split("\n")
    assert caught.out == ""
    assert len(lines) == 1, lines
    assert says in lines[0]
    assert len(lines[0]) < 500
    assert sorted(tmp_path.rglob("*")) == before


def test_many_faults_are_a_handful_of_names_and_a_count(copy: Path) -> None:
    change_weights(copy, lambda t: renamed(t, ("attention.output", "attention.out")))
    with pytest.raises(RequestError, match=r"missing: (\S+, ){4}\S+ and 3 more; unexpected: (\S+, ){4}\S+ and 3 more$"):
        load_pretrained(copy)


def test_what_is_there_is_not_replaced_unasked(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "ours"
    assert run(["import", str(copy), str(out)]) == 0
    assert run(["import", str(copy), str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert run(["import", str(copy), str(out), "--overwrite"]) == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine", encoding="utf-8")
    assert run(["import", str(copy), str(other), "--overwrite"]) == 2
    assert (other / "thesis.txt").read_text("utf-8") == "mine"


# --- our own --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [WEIGHTS, "state.json", "tokenizer/tokenizer.json"])
@pytest.mark.parametrize("damage", ["truncated", "corrupted"])
def test_a_damaged_import_is_refused(full: Path, tmp_path: Path, file: str, damage: str) -> None:
    out = tmp_path / "ours"
    import_model(full, out, say=quiet)
    content = (out / file).read_bytes()
    changed = content[:-3] if damage == "truncated" else content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    (out / file).write_bytes(changed)
    with pytest.raises(RequestError, match=file):
        load_pretrained(out)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such directory"):
        load_pretrained(tmp_path / "nothing")
    with pytest.raises(RequestError, match="neither a run"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("nsp", [True, False])
def test_building_keeps_what_is_there_and_names_what_is_new(tmp_path: Path, nsp: bool) -> None:
    pretrained = load_pretrained(save_theirs(their_model("BertForMaskedLM"), tmp_path / "theirs"))
    model, new = build(pretrained, nsp=nsp)
    pair = [
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
        "cls.seq_relationship.weight",
    ]
    assert new == (pair if nsp else [])
    assert_same(dict(model.state_dict()), pretrained.weights)


def test_shapes_are_those_of_transformers() -> None:
    from bertpt.config.schema import Model
    from bertpt.interop.names import shapes

    found = {name: shape for part in shapes(Model(**SIZES), 60).values() for name, shape in part.items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in their_model("BertForPreTraining").named_parameters()}
    assert found == theirs

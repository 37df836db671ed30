"""Exports: transformers loads them whole, with equal numbers and equal ids; what fails a check is not written."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from interop_helpers import WEIGHTS, assert_same, save_theirs, their_model, their_outputs
from safetensors import safe_open
from safetensors.torch import load_file
from train_helpers import Tiny

from bertpt.cli.main import run
from bertpt.data.tokenizer.vocabulary import choose_alphabet, count_words, learn_vocabulary
from bertpt.data.tokenizer.wordpiece import SPECIALS, Normalising, WordPieceTokenizer, build, save
from bertpt.errors import BertptError, RequestError
from bertpt.interop import export_hf as module
from bertpt.interop.check import outputs, sample_rows
from bertpt.interop.export_hf import export_hf
from bertpt.interop.pretrained import load_pretrained
from bertpt.predict.fill_mask import Predictor
from bertpt.train.evaluation import evaluate_run
from bertpt.train.pretrain import pretrain

Capture = pytest.CaptureFixture[str]
FILES = {
    "README.md",
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
}
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
PAIR = {f"bert.{name}" for name in POOLER} | {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}


def quiet(_: str) -> None:
    pass


def trained(tiny: Tiny, runs: Path, **sections: Any) -> Path:
    """A run of two updates with its evaluation; the vocabulary is padded to a multiple."""
    phases = [{"length": 32, "steps": 2, "batch_size": 16}]
    config = tiny.config(runs, train={"phases": phases, "schedule": {"warmup_steps": 1}}, **sections)
    directory = pretrain(config, say=quiet).directory
    evaluate_run(directory, say=quiet)
    return directory


@pytest.fixture(scope="module")
def pairs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = {"pad_vocab_to_multiple_of": 64, "hidden_act": "gelu_new"}
    return trained(tiny, tmp_path_factory.mktemp("runs"), model=model)


@pytest.fixture(scope="module")
def alone(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tiny, tmp_path_factory.mktemp("runs"), pairs={"rule": "none"})


@pytest.fixture(scope="module")
def exported(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "pairs"
    export_hf(pairs, out, say=quiet)
    return out


def loaded(name: str, directory: Path) -> tuple[Any, dict[str, set[str]]]:
    """A model of that class of transformers, and what it says was amiss."""
    import transformers

    model, info = getattr(transformers, name).from_pretrained(directory, output_loading_info=True)
    return model.eval(), {kind: set(names) for kind, names in info.items() if names}


# --- loading in transformers ----------------------------------------------------------------------------------------


def test_transformers_loads_every_weight_and_says_the_same(pairs: Path, exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == FILES
    pretrained = load_pretrained(pairs)
    rows = sample_rows(pretrained)
    ours = outputs(pretrained, rows)
    for name, unexpected in (
        ("BertForPreTraining", set()),
        ("AutoModelForPreTraining", set()),
        ("AutoModelForMaskedLM", PAIR),
        ("AutoModel", {key for key in load_file(exported / WEIGHTS) if key.startswith("cls.")}),
    ):
        model, amiss = loaded(name, exported)
        # A class without a head finds the head's tensors, as in every checkpoint of its kind; nothing is missing.
        assert amiss == ({"unexpected_keys": unexpected} if unexpected else {}), name
        assert_same(ours, their_outputs(model, rows), atol=1e-5)


def test_a_model_without_pairs_is_a_masked_language_model(alone: Path, tmp_path: Path) -> None:
    done = export_hf(alone, tmp_path / "out", say=quiet)
    assert done.architecture == "BertForMaskedLM"
    assert done.difference == 0
    assert done.difference_transformers is not None
    assert done.difference_transformers < 1e-5
    pretrained = load_pretrained(alone)
    rows = sample_rows(pretrained)
    model, amiss = loaded("AutoModelForMaskedLM", tmp_path / "out")
    assert amiss == {}
    assert_same(outputs(pretrained, rows), their_outputs(model, rows), atol=1e-5)
    assert loaded("AutoModel", tmp_path / "out")[1]["missing_keys"] == POOLER
    assert "add_pooling_layer=False" in (tmp_path / "out" / "README.md").read_text("utf-8")


def test_the_vocabulary_has_its_true_size_and_the_decoder_is_stored_once(pairs: Path, exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text("utf-8"))
    size = len((exported / "vocab.txt").read_text("utf-8").split("\n")) - 1
    tensors = load_file(exported / WEIGHTS)
    assert load_pretrained(pairs).weights["bert.embeddings.word_embeddings.weight"].shape[0] % 64 == 0
    assert config["vocab_size"] == size
    assert size % 64
    assert [tuple(t.shape) for t in tensors.values() if size in t.shape] == [(size, 32), (size,)]
    assert config["tie_word_embeddings"] is True
    assert config["hidden_act"] == "gelu_new"
    with safe_open(exported / WEIGHTS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def _word(token: str) -> str:
    return token.removeprefix("##")


def test_fill_mask_says_the_same_words(pairs: Path, exported: Path) -> None:
    from transformers import pipeline

    text = "bada [MASK] kilo thé"
    theirs = pipeline("fill-mask", model=str(exported), tokenizer=str(exported), device="cpu")(text, top_k=4)
    [ours] = Predictor.open(pairs, say=quiet).fill_mask(text, top=4)
    assert [guess["token_str"].replace("##", "") for guess in theirs] == [
        token.replace("##", "") for token in ours.tokens
    ]
    assert [guess["score"] for guess in theirs] == pytest.approx(ours.probabilities, abs=1e-5)


def test_the_card_tells_data_recipe_and_scores(pairs: Path, exported: Path) -> None:
    card = (exported / "README.md").read_text("utf-8")
    scores = json.loads((pairs / "eval.json").read_text("utf-8"))["scores"]
    assert f"| masked words: loss (nats) | {scores['mlm_loss']:.4g} |" in card
    assert "training documents" in card
    assert "- 2 updates of 16 rows of up to 32 tokens" in card
    assert "kind: `files`" in card
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert str(pairs.parent) not in card


def test_positions_are_where_text_is_cut(exported: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert tokenizer.model_max_length == 48
    assert len(tokenizer("b " * 100, truncation=True)["input_ids"]) == 48
    pair = tokenizer("ba", "da")
    assert pair["token_type_ids"] == [0] * (pair["input_ids"].index(3) + 1) + [1] * (
        len(pair["input_ids"]) - pair["input_ids"].index(3) - 1
    )


# --- ids ------------------------------------------------------------------------------------------------------------


def odd_lines(count: int) -> list[str]:
    """Lines of words, accents, scripts, emoji, control characters, odd spaces, and words of 99 to 102 letters."""
    draw = random.Random(5)
    words = [
        *["the", "The", "Quick", "café", "CAFÉ", "café", "ÅNGSTRÖM", "naïve", "straße", "ΣΊΣΥΦΟΣ", "İstanbul", "ıssız"],
        *["北京", "東京タワー", "한국어", "हिन्दी", "ภาษาไทย", "עִבְרִית", "العربية", "𠀀", "😀", "👩\u200d💻"],
        *("a\u200bb", "c\x00d", "e\x07f", "g\x85h", "i\x1cj", "k\u00adl", "\ufeffm", "n\ufffdo", "\u2028", "p\u3000q"),
        *[
            "r\xa0s",
            "don't",
            "e.g.",
            "3.14",
            "1,000",
            "$5",
            "x²",
            "½",
            "ﬁne",
            "—",
            "…",
            "##ing",
            "[CLS",
            "MASK]",
            "~`^",
        ],
        *("A" * 99, "b" * 100, "c" * 101, "é" * 102),
    ]
    letters = "abcdefghijklmnoprstuvzéüñçßÉÜ"

    def word() -> str:
        return draw.choice(words) if draw.random() < 0.5 else "".join(draw.choices(letters, k=draw.randint(1, 8)))

    return [draw.choice([" ", "  ", "\t", ""]).join(word() for _ in range(draw.randint(0, 9))) for _ in range(count)]


@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
def test_ids_equal_ours_on_ten_thousand_odd_lines(tmp_path: Path, cased: bool) -> None:
    from transformers import AutoTokenizer

    lines, flags = odd_lines(10_000), Normalising(not cased, not cased)
    counted = count_words(iter(lines[:2000]), flags).words
    tokens = learn_vocabulary(counted, choose_alphabet(counted, 500, flags), 500, 2)
    theirs = their_model("BertForMaskedLM", vocab_size=len(tokens))
    save(save_theirs(theirs, tmp_path / "theirs", tokens=tokens), tokens, flags)
    export_hf(tmp_path / "theirs", tmp_path / "out", say=quiet)
    loaded_by_them = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = WordPieceTokenizer(build(tokens, flags)).encode_sentences(lines)
    found = loaded_by_them(lines, add_special_tokens=False)["input_ids"]
    differing = [(line, a, b) for line, a, b in zip(lines, found, ours, strict=True) if a != b]
    assert differing[:3] == []
    unknown = tokens.index("[UNK]")
    assert sum(unknown in ids for ids in ours) < len(lines) - 500  # not a comparison of nothing
    assert len({i for ids in ours for i in ids}) > len(tokens) / 2


def test_special_tokens_in_text_are_the_one_difference(pairs: Path, exported: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(exported)
    ours = load_pretrained(pairs).open_tokenizer()
    for index, special in enumerate(SPECIALS):
        found = theirs(f"ba {special} da", add_special_tokens=False)["input_ids"]
        assert found.count(index) >= 1
        assert index not in ours.encode_sentences([f"ba {special} da"])[0] or special == "[UNK]"
    assert "in training such text was words" in (exported / "README.md").read_text("utf-8").replace("\n", " ")


# --- round trips ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "architecture", ["BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction", "BertModel"]
)
def test_import_and_export_give_back_equal_tensors(tmp_path: Path, architecture: str) -> None:
    source = save_theirs(their_model(architecture), tmp_path / "theirs")
    assert run(["import", str(source), str(tmp_path / "ours"), "-q"]) == 0
    assert run(["export", "hf", str(tmp_path / "ours"), str(tmp_path / "out"), "-q"]) == 0
    before, after = load_file(source / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert before.keys() == after.keys()
    assert_same(after, before)
    said = [json.loads((directory / "config.json").read_text("utf-8")) for directory in (source, tmp_path / "out")]
    wanted = {key: value for key, value in said[0].items() if key in said[1]}
    assert {key: said[1][key] for key in wanted} == wanted
    assert loaded(architecture, tmp_path / "out")[1] == {}


def test_an_export_of_a_run_comes_back_as_it_was(pairs: Path, exported: Path) -> None:
    run_, again = load_pretrained(pairs), load_pretrained(exported)
    name = "bert.embeddings.word_embeddings.weight"
    assert_same(again.weights, run_.weights | {name: run_.weights[name][: run_.vocab_size]})
    assert again.tokens == run_.tokens
    checkpoint = next((pairs / "checkpoints").iterdir())
    assert_same(load_pretrained(checkpoint).weights, run_.weights)


# --- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["swapped", "lost"])
def test_what_does_not_read_back_the_same_is_not_written(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    right = module.to_hf

    def wrong(weights: Any, size: int) -> dict[str, torch.Tensor]:
        tensors = right(weights, size)
        query, key = (f"bert.encoder.layer.0.attention.self.{part}.weight" for part in ("query", "key"))
        value = query.replace("query", "value")
        tensors[key], tensors[value] = tensors[value], tensors[key]
        return tensors if fault == "swapped" else {name: t for name, t in tensors.items() if name != key}

    monkeypatch.setattr(module, "to_hf", wrong)
    with pytest.raises(BertptError, match="differ by" if fault == "swapped" else "missing: .*key.weight"):
        export_hf(pairs, tmp_path / "out", say=quiet)
    assert list(tmp_path.iterdir()) == []


def test_without_transformers_it_says_what_was_not_checked(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "transformers" else find(name, *rest)
    )
    assert run(["export", "hf", str(pairs), str(tmp_path / "out")]) == 0
    assert "not checked in transformers: it is not installed" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_an_export_replaces_only_a_model_and_only_when_asked(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(RequestError, match="name another directory"):
            export_hf(pairs, out, overwrite=overwrite, say=quiet)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


# --- ONNX -----------------------------------------------------------------------------------------------------------


def test_onnx_graphs_agree_for_any_batch_and_length(pairs: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    assert run(["export", "onnx", str(pairs), str(tmp_path / "out"), "-q"]) == 0
    pretrained = load_pretrained(pairs)
    sessions = {
        name: runtime.InferenceSession(tmp_path / "out" / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("encoder", "mlm")
    }
    draw = torch.Generator().manual_seed(1)
    for batch, length in ((1, 1), (1, 48), (7, 5)):
        lengths = torch.randint(1, length + 1, (batch,), generator=draw)
        lengths[0] = length
        mask = (torch.arange(length) < lengths[:, None]).long()
        rows = {
            "input_ids": torch.randint(0, pretrained.vocab_size, (batch, length), generator=draw),
            "attention_mask": mask,
            "token_type_ids": torch.randint(0, 2, (batch, length), generator=draw),
        }
        arrays = {name: tensor.numpy() for name, tensor in rows.items()}
        hidden, pooled = map(torch.from_numpy, sessions["encoder"].run(["last_hidden_state", "pooler_output"], arrays))
        logits = torch.from_numpy(sessions["mlm"].run(["logits"], arrays)[0])
        found = {"hidden": hidden[mask.bool()], "pooled": pooled, "mlm_logits": logits[mask.bool()]}
        wanted = outputs(pretrained, rows)
        del wanted["nsp_logits"]
        assert_same(found, wanted, atol=1e-4)
    assert logits.shape == (7, 5, pretrained.vocab_size)


@pytest.mark.slow
def test_onnx_of_an_encoder_is_one_graph_and_a_wrong_one_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    from bertpt.interop import export_onnx

    source = save_theirs(their_model("BertModel", num_hidden_layers=1), tmp_path / "theirs")
    done = export_onnx.export_onnx(source, tmp_path / "out", say=quiet)
    assert list(done.differences) == ["encoder.onnx"]
    assert done.differences["encoder.onnx"] < 1e-4
    assert not (tmp_path / "out" / "mlm.onnx").exists()
    monkeypatch.setattr(export_onnx.PaddedEncoder, "_layer", staticmethod(lambda layer, hidden, bias: hidden * 0.5))
    with pytest.raises(BertptError, match=r"encoder\.onnx in onnxruntime: \w+ differ by"):
        export_onnx.export_onnx(source, tmp_path / "wrong", say=quiet)
    assert not (tmp_path / "wrong").exists()

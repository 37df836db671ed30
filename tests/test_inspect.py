"""What ``bertpt inspect`` says is counted again here, in the plainest way."""

from __future__ import annotations

import json
import shutil
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from stage_helpers import make_config, put_documents, sign_manifest
from store_helpers import as_documents, make_tokens, random_documents
from train_helpers import Tiny, quiet, write_config

from bertpt.cli.main import run
from bertpt.config import Config
from bertpt.data.corpus.documents import Document, iter_documents
from bertpt.data.corpus.download import download
from bertpt.data.inspect.corpus import CorpusFigures, inspect_corpus
from bertpt.data.inspect.layout import Bucket, bars, histogram
from bertpt.data.inspect.pairs import PairFigures, inspect_pairs, spread
from bertpt.data.inspect.tokenizer import inspect_tokenizer, script_of
from bertpt.data.locate import documents_dir, finished_store, tokenizer_dir
from bertpt.data.rows.loader import BatchStream
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokenizer.wordpiece import load_tokenizer
from bertpt.data.tokens.sentences import split_sentences
from bertpt.data.tokens.store import TokenStore
from bertpt.errors import BertptError, RequestError
from bertpt.files import sha256_file
from bertpt.train.checkpoints.inspect import inspect_checkpoint, module_of
from bertpt.train.pretrain import pretrain

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def config(tiny: Tiny) -> Config:
    return tiny.config(tiny.folder / "runs")


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    steps = [{"length": 32, "steps": 2, "batch_size": 4}, {"length": 48, "steps": 1, "batch_size": 4}]
    runs = tmp_path_factory.mktemp("runs")
    return pretrain(
        tiny.config(runs, train={"phases": steps, "schedule": {"warmup_steps": 0}}), say=quiet, progress=False
    ).directory


# --- layout -----------------------------------------------------------------------------------------------------------


def test_a_histogram_counts_each_value_once() -> None:
    values = np.array([1, 1, 2, 3, 4, 5, 100, 2**40])
    found = histogram(values, (1, 2, 3, 5))
    assert found == [Bucket(1, 1, 2), Bucket(2, 2, 1), Bucket(3, 4, 2), Bucket(5, None, 3)]
    assert [bucket.label for bucket in found] == ["1", "2", "3 to 4", "5 or more"]
    assert histogram(values[:-1], (1, 50), 100)[-1].label == "50 to 100"


def test_bars_end_with_the_last_value_and_show_nothing_of_nothing() -> None:
    lines = bars([Bucket(1, 1, 1), Bucket(2, 2, 3), Bucket(3, None, 0)])
    assert [line.split()[:3] for line in lines] == [["1", "1", "25.0%"], ["2", "3", "75.0%"]]
    assert lines[1].count("#") == 40
    assert bars([Bucket(1, None, 0)]) == []


# --- corpus -----------------------------------------------------------------------------------------------------------


def test_corpus_figures_are_those_of_the_documents(config: Config) -> None:
    figures = inspect_corpus(config, progress=False)
    read = {split: list(iter_documents(documents_dir(config), split)) for split in ("train", "heldout")}
    everything = read["train"] + read["heldout"]
    sentences = [len(split_sentences(document.text, "en")) for document in everything]
    (source,) = figures.sources
    assert (source.documents, source.heldout) == (len(read["train"]), len(read["heldout"]))
    assert source.text_bytes == sum(len(document.text.encode()) for document in everything)
    assert source.lines == sum(document.text.count("\n") + 1 for document in everything)
    assert (source.sentences, source.median_sentences) == (sum(sentences), statistics.median(sentences))
    assert sum(bucket.number for bucket in figures.sentences_per_document) == len(everything)
    assert sum(bucket.number for bucket in figures.letters_per_document) == len(everything)
    assert figures.repeated_documents == 0


def test_corpus_samples_are_documents_chosen_by_the_seed(config: Config) -> None:
    def chosen(seed: int, samples: int = 4) -> list[tuple[str, str]]:
        return [(s.name, s.split) for s in inspect_corpus(config, samples=samples, seed=seed, progress=False).samples]

    assert len(set(chosen(0))) == 4
    assert chosen(0) == chosen(0) != chosen(1)
    assert chosen(0, 2) == chosen(0)[:2]
    assert len(chosen(0, 1000)) == 36
    assert chosen(0, 0) == []


def test_a_part_of_a_large_corpus_is_split_and_the_rest_counted(config: Config) -> None:
    figures = inspect_corpus(config, split_documents=12, progress=False)
    (source,) = figures.sources
    assert 4 <= source.split_documents <= 20
    assert source.documents + source.heldout == 36
    assert any(f"those of {source.split_documents} of the 36 documents" in line for line in figures.lines())


def corpus_of(tmp_path: Path, text: str, **corpus: Any) -> CorpusFigures:
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    source = {"kind": "files", "path": str(tmp_path / "text.txt")} | corpus.pop("source", {})
    made = make_config(tmp_path / "data", corpus={"sources": [source], **corpus})
    download(made, say=quiet, progress=False)
    return inspect_corpus(made, progress=False)


def test_single_sentences_are_explained(tmp_path: Path) -> None:
    many = "\n\n".join(f"This is sentence {n} of the book." for n in range(40))
    (source,) = (figures := corpus_of(tmp_path, many)).sources
    assert source.one_sentence_share == 1.0
    assert "a blank line after every sentence" in str(source.one_sentence_cause)
    assert any("100% of the documents are a single sentence" in line for line in figures.lines())


def test_rows_and_lines_as_sentences_are_explained_too(tmp_path: Path) -> None:
    rows = "\n".join(json.dumps({"text": f"This is sentence {n}."}) for n in range(40))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    (source,) = corpus_of(
        tmp_path, "", name="rows", source={"path": str(tmp_path / "rows.jsonl"), "format": "jsonl"}
    ).sources
    assert "group, heading or blank-line joins them" in str(source.one_sentence_cause)
    text = "\n\n".join(f"One {n}. Two. Three." for n in range(40))
    (source,) = corpus_of(tmp_path, text, name="lines", sentences="lines").sources
    assert "corpus.sentences: split" in str(source.one_sentence_cause)
    (tmp_path / "rows.jsonl").unlink()
    gone = {"path": str(tmp_path / "rows.jsonl"), "format": "jsonl"}
    figures = inspect_corpus(
        make_config(tmp_path / "data", corpus={"name": "rows", "sources": [{"kind": "files"} | gone]})
    )
    assert "blank line after every sentence" in str(figures.sources[0].one_sentence_cause)
    assert "group, heading or blank-line joins them" in str(figures.sources[0].one_sentence_cause)
    (source,) = corpus_of(tmp_path, text, name="split").sources
    assert source.one_sentence_cause is None


def test_repeats_and_what_was_dropped_are_told(tmp_path: Path) -> None:
    documents = [f"Text {n} is here. It has two sentences.\nSame last line." for n in range(40)]
    figures = corpus_of(tmp_path, "\n\n".join([*documents, *documents[:10], "\x07bell. Second."]))
    train = [document.text for document in iter_documents(Path(figures.directory), "train")]
    assert figures.repeated_documents == len(train) - len(set(train)) > 0
    assert figures.repeated_lines_share > 0.4
    text = "\n".join(figures.lines())
    assert "1 control character replaced by spaces" in text
    assert "of the lines repeat another line; was the text cleaned after scraping?" in text
    assert "corpus.deduplicate: documents" in text
    assert figures.sources[0].changes["controls"] == 1


def test_a_store_adds_what_it_left_out(config: Config) -> None:
    prepared = inspect_corpus(config, progress=False).prepared
    counts = TokenStore.open(finished_store(config)).manifest["counts"]
    assert prepared["train"]["documents_too_short"] == counts["train"]["documents_too_short"]
    assert set(prepared) == {"train", "heldout"}


# --- tokenizer --------------------------------------------------------------------------------------------------------


def test_tokenizer_figures_are_those_of_the_heldout_words(config: Config) -> None:
    figures = inspect_tokenizer(config, progress=False)
    tokenizer = load_tokenizer(tokenizer_dir(config))
    words = [w for d in iter_documents(documents_dir(config), "heldout") for w in tokenizer.words(d.text)]
    pieces = [tokenizer.encode_sentences([word])[0] for word in words]
    assert figures.entries == len((tokenizer_dir(config) / "vocab.txt").read_text(encoding="utf-8").split())
    assert (figures.words, figures.pieces) == (len(words), sum(map(len, pieces)))
    assert figures.unknown_words == sum(tokenizer.unk_id in ids for ids in pieces)
    assert figures.pieces_per_word == {"text": pytest.approx(figures.pieces / figures.words)}
    assert figures.word_entries + figures.continuing_entries + 5 == figures.entries
    assert figures.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    used = {index for ids in pieces for index in ids} - {0, 1, 2, 3, 4}
    assert figures.unused_entries == figures.entries - 5 - len(used)
    longest = max(len(token.removeprefix("##")) for token in tokenizer.tokens[5:])
    assert len(figures.longest_entries[0].removeprefix("##")) == longest


def test_unknown_words_and_scripts_are_named(tmp_path: Path) -> None:
    heldout = [Document("abab привет привет\n漢字 ab. ab x1", "web", "d")]
    put_documents(tmp_path, ["ab ba abba baab aab bba. x1 x1" for _ in range(20)], heldout)
    config = make_config(tmp_path)
    train_tokenizer(config, say=quiet, progress=False)
    figures = inspect_tokenizer(config, samples=2, progress=False)
    assert figures.top_unknown_words == {"привет": 2, "字": 1, "漢": 1}
    scripts = {script.script: (script.letters, script.coverage) for script in figures.scripts}
    assert scripts == {"LATIN": (9, 1.0), "CYRILLIC": (12, 0.0), "CJK": (2, 0.0)}
    assert figures.unknown_share == pytest.approx(4 / 9)
    text = "\n".join(figures.lines())
    assert "привет (2)" in text
    assert "a larger tokenizer.vocab_size helps" in text
    assert [sample.source for sample in figures.samples] == ["web", "web"]
    assert script_of("ж") == "CYRILLIC"
    assert script_of("1") == script_of(".") == script_of("\x00") == ""


def test_of_much_heldout_text_some_of_every_source_is_tried(tmp_path: Path) -> None:
    heldout = [Document(f"text number {n} of many words", "ab"[n // 200], str(n)) for n in range(400)]
    put_documents(tmp_path, ["text of many words number"] * 4, heldout)
    config = make_config(tmp_path, model={"pad_vocab_to_multiple_of": 64})
    train_tokenizer(config, say=quiet, progress=False)
    size = sum(len(document.text) for document in heldout)
    part, again, other = (
        inspect_tokenizer(config, max_bytes=size // 4, seed=seed, progress=False) for seed in (0, 0, 1)
    )
    assert part.words == again.words
    assert part.documents == pytest.approx(100, abs=30)
    assert part.of_documents == 400
    assert set(part.pieces_per_word) == {"a", "b"}
    assert (part.documents, part.words) != (other.documents, other.words)
    assert inspect_tokenizer(config, max_bytes=1, progress=False).documents == 1
    assert part.model_rows % 64 == 0
    assert 0 <= part.model_rows - part.entries < 64
    text = "\n".join(part.lines())
    assert f"On {part.documents} held-out documents of 400, chosen by --seed" in text
    assert f"the model has {part.model_rows} rows for them (model.pad_vocab_to_multiple_of), of which" in text


def test_tokenizer_samples_follow_the_seed_and_are_the_sentences_pieces(config: Config) -> None:
    tokenizer = load_tokenizer(tokenizer_dir(config))
    first, again, other = (inspect_tokenizer(config, seed=seed, progress=False).samples for seed in (0, 0, 1))
    assert first == again != other
    for sample in first:
        assert [tokenizer.tokens.index(piece) for piece in sample.pieces] == tokenizer.encode_sentences([sample.text])[
            0
        ]


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_the_rows_shown_are_those_of_training(config: Config) -> None:
    store, tokenizer = TokenStore.open(finished_store(config)), load_tokenizer(tokenizer_dir(config))
    figures = inspect_pairs(config, samples=6)
    assert [rows.length for rows in figures.lengths] == [32, 48]
    for rows in figures.lengths:
        stream = BatchStream.create(
            store, "train", pairs=config.pairs, masking=config.masking, length=rows.length, batch_size=1, seed=0
        )
        assert len(rows.examples) == 6
        for example in rows.examples:
            batch = stream[example.row]
            assert batch.masked_positions is not None
            assert batch.masked_labels is not None
            assert batch.next_sentence_label is not None
            assert example.tokens == [tokenizer.token(index) for index in batch.input_ids.tolist()]
            assert example.segments == batch.token_type_ids.tolist()
            assert example.label == ["B follows A", "B is random"][int(batch.next_sentence_label)]
            assert [p.position for p in example.predictions] == batch.masked_positions.tolist()
            assert [p.original for p in example.predictions] == [
                tokenizer.token(i) for i in batch.masked_labels.tolist()
            ]
            for prediction in example.predictions:
                assert example.tokens[prediction.position] == prediction.shown
                shown = prediction.shown
                kind = "masked" if shown == "[MASK]" else "kept" if shown == prediction.original else "random"
                assert prediction.kind == kind


def test_row_and_mask_figures_are_those_of_the_batches(config: Config) -> None:
    store = TokenStore.open(finished_store(config))
    (rows,) = inspect_pairs(config, lengths=[40]).lengths
    stream = BatchStream.create(
        store, "train", pairs=config.pairs, masking=config.masking, length=40, batch_size=rows.rows, seed=0
    )
    batch = stream[0]
    assert batch.next_sentence_label is not None
    assert batch.masked_positions is not None
    sizes = batch.attention_mask.sum(1).tolist()
    assert rows.rows == len(stream.plans.epoch(0))
    assert rows.mean_fill == pytest.approx(sum(sizes) / len(sizes) / 40)
    assert rows.full_share == pytest.approx(sizes.count(40) / len(sizes))
    assert rows.random_share == pytest.approx(batch.next_sentence_label.float().mean().item())
    for bucket in rows.tokens_per_row:
        assert bucket.number == sum(bucket.low <= size <= (bucket.high or 10**9) for size in sizes)
    special = set(store.special_ids.values())
    changed = batch.input_ids.clone()
    changed[batch.masked_positions] = batch.masked_labels
    maskable = sum(index not in special for index in changed.tolist())
    assert rows.masks.rate == pytest.approx(batch.predictions / maskable)
    now = batch.input_ids[batch.masked_positions]
    assert rows.masks.masked_share == pytest.approx((now == 4).float().mean().item())
    assert rows.masks.kept_share == pytest.approx((now == batch.masked_labels).float().mean().item())
    assert rows.masks.masked_share + rows.masks.random_share + rows.masks.kept_share == pytest.approx(1)
    assert rows.masks.mean == pytest.approx(batch.predictions / rows.rows)


def test_random_and_true_pairs_are_shown_in_turn_and_the_seed_chooses(config: Config) -> None:
    def shown(seed: int) -> PairFigures:
        return inspect_pairs(config, lengths=[32], samples=4, seed=seed)

    first = shown(0).lengths[0].examples
    assert Counter(example.label for example in first) == {"B follows A": 2, "B is random": 2}
    assert first == shown(0).lengths[0].examples != shown(1).lengths[0].examples


def test_rows_in_order_are_told_in_words_and_are_those_of_training(tiny: Tiny) -> None:
    config = tiny.config(tiny.folder / "runs", pairs={"rule": "order"}, masking={"unit": "ngram", "dupe_factor": 1})
    store, tokenizer = TokenStore.open(finished_store(config)), load_tokenizer(tokenizer_dir(config))
    figures = inspect_pairs(config, lengths=[32], samples=6)
    (rows,) = figures.lengths
    assert Counter(example.label for example in rows.examples) == {"in order": 3, "swapped": 3}
    assert rows.random_share is None
    assert rows.swapped_share == pytest.approx(0.5, abs=0.15)
    stream = BatchStream.create(
        store, "train", pairs=config.pairs, masking=config.masking, length=32, batch_size=1, seed=0
    )
    for example in rows.examples:
        batch = stream[example.row]
        assert batch.next_sentence_label is not None
        assert example.tokens == [tokenizer.token(index) for index in batch.input_ids.tolist()]
        assert example.label == ["in order", "swapped"][int(batch.next_sentence_label)]
    text = "\n".join(figures.lines())
    assert "pairs of segments in order or swapped" in text
    assert "of the pairs are swapped" in text
    assert "random B" not in text


def test_weights_of_sources_are_shown_with_what_they_make(tiny: Tiny) -> None:
    sources = [{"kind": "files", "path": str(tiny.folder / "text"), "documents": "file", "weight": 2, "max_repeats": 3}]
    config = tiny.config(tiny.folder / "runs", corpus={"sources": sources})
    figures = inspect_pairs(config, lengths=[32])
    assert figures.repeats == {"text": 1.0}
    assert figures.lengths[0].tokens_by_source == {"text": 1.0}
    assert "  text: 1.00 times in an epoch, 100.0% of the tokens" in figures.lines()


def test_rows_without_pairs_have_no_label_and_no_second_segment(tiny: Tiny) -> None:
    config = tiny.config(
        tiny.folder / "runs", pairs={"rule": "none"}, masking={"rate": 0.5, "mask_share": 1.0, "random_share": 0.0}
    )
    figures = inspect_pairs(config, lengths=[32], samples=2)
    (rows,) = figures.lengths
    assert (rows.random_share, rows.mean_b) == (None, None)
    assert rows.masks.rate == pytest.approx(0.5, abs=0.03)
    assert (rows.masks.masked_share, rows.masks.random_share) == (1.0, 0.0)
    for example in rows.examples:
        assert (example.label, example.source_b) == (None, None)
        assert set(example.segments) == {0}
    assert not [line for line in figures.lines() if line.startswith("  B:")]


def test_a_part_of_a_large_store_is_whole_documents_of_every_source() -> None:
    documents = [[[5 + place], *rest] for place, rest in enumerate(random_documents(400, sentences=(1, 5)))]
    tokens = make_tokens(documents, [0] * 300 + [1] * 95 + [2] * 5)
    part = spread(tokens, 100)
    found = as_documents(part)
    places = [document[0][0] - 5 for document in found]
    assert found == [documents[place] for place in places]
    assert places == sorted(set(places))
    assert Counter(part.sources.tolist()) == {0: 75, 1: 50, 2: 5}
    assert spread(tokens, 400) is tokens


# --- checkpoint -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_described_as_its_tensors_are(trained: Path) -> None:
    figures = inspect_checkpoint(trained)
    weights = load_file(Path(figures.directory) / "model.safetensors")
    assert (figures.step, figures.steps) == (3, 3)
    assert figures.parameters == sum(tensor.numel() for tensor in weights.values()) == sum(figures.by_module.values())
    assert figures.vocab_size == len(load_tokenizer(trained / "tokenizer").tokens)
    assert figures.model["hidden_size"] == 32
    for tensor in figures.tensors:
        expected = weights[tensor.name]
        assert tensor.shape == list(expected.shape)
        assert tensor.norm == pytest.approx(expected.norm().item(), rel=1e-5)
        assert (tensor.smallest, tensor.largest) == (expected.min().item(), expected.max().item())
    for name, facts in figures.files.items():
        assert facts["sha256"] == sha256_file(Path(figures.directory) / name)
    assert {"store", "tokenizer"} <= figures.run.keys()
    assert figures.not_finite == []
    assert inspect_checkpoint(Path(figures.directory)) == figures


def test_a_damaged_checkpoint_is_refused(trained: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(inspect_checkpoint(trained).directory, tmp_path / "step-00000003"))
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(RequestError, match=r"model\.safetensors: damaged"):
        inspect_checkpoint(copy)
    with pytest.raises(RequestError, match="no such directory"):
        inspect_checkpoint(tmp_path / "nothing")
    with pytest.raises(RequestError, match="not a finished checkpoint"):
        inspect_checkpoint(tmp_path)


def test_values_that_are_not_finite_are_named(trained: Path, tmp_path: Path) -> None:
    run_copy = Path(shutil.copytree(trained, tmp_path / "run"))
    directory = run_copy / "checkpoints" / "step-00000003"
    weights = load_file(directory / "model.safetensors")
    weights["bert.embeddings.LayerNorm.weight"][3] = float("nan")
    save_file(weights, directory / "model.safetensors")
    with pytest.raises(BertptError, match="no intact checkpoint"):
        inspect_checkpoint(run_copy)
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    path = directory / "model.safetensors"
    manifest["files"]["model.safetensors"] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    sign_manifest(directory, manifest)
    figures = inspect_checkpoint(run_copy)
    assert figures.not_finite == ["bert.embeddings.LayerNorm.weight"]
    assert any("NaN or infinite values in bert.embeddings.LayerNorm.weight" in line for line in figures.lines())
    (tensor,) = [t for t in figures.tensors if t.not_finite]
    rest = weights[tensor.name][torch.isfinite(weights[tensor.name])]
    assert tensor.norm == pytest.approx(rest.norm().item())
    json.dumps(figures.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("bert.embeddings.LayerNorm.bias", "bert.embeddings"),
        ("bert.encoder.layer.11.output.dense.bias", "bert.encoder.layer.11"),
        ("cls.predictions.bias", "cls.predictions"),
    ],
)
def test_a_tensor_belongs_to_its_layer_or_head(name: str, module: str) -> None:
    assert module_of(name) == module


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["corpus", "tokenizer", "pairs"])
def test_the_commands_print_text_or_json(what: str, tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    config = str(write_config(tmp_path / "c.yaml", tiny.plain(tmp_path)))
    assert run(["inspect", what, "--config", config, "-n", "1"]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    assert text.startswith(str(tiny.folder / "data"))
    assert max(map(len, text.split("\n"))) < 200
    assert run(["inspect", what, "--config", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["directory"].startswith(str(tiny.folder))


@pytest.mark.parametrize("what", ["corpus", "tokenizer", "pairs"])
def test_what_is_missing_is_named_with_the_command_that_makes_it(
    what: str, tiny: Tiny, tmp_path: Path, capsys: Capture
) -> None:
    config = str(write_config(tmp_path / "c.yaml", tiny.plain(tmp_path)))
    assert run(["inspect", what, "--config", config, "--data-dir", str(tmp_path / "none")]) == 2
    assert "`bertpt download`" in capsys.readouterr().err


def test_the_checkpoint_command_finds_the_newest_run_or_that_of_a_configuration(
    trained: Path, tiny: Tiny, tmp_path: Path, capsys: Capture
) -> None:
    config = str(write_config(tmp_path / "c.yaml", tiny.plain(trained.parent)))
    for arguments in ([str(trained)], ["--runs-dir", str(trained.parent)], ["--config", config]):
        assert run(["inspect", "checkpoint", *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 3
    assert run(["inspect", "checkpoint", str(trained)]) == 0
    assert "update 3 of 3" in capsys.readouterr().out

"""TensorBoard of a run, read back with TensorBoard's own readers."""

from __future__ import annotations

import html
import json
import math
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from torch import Tensor, nn
from train_helpers import Tiny, quiet

from bertpt.cli.main import run as bertpt
from bertpt.config import load_config
from bertpt.config.schema import Optimizer as OptimizerConfig
from bertpt.data.locate import finished_store
from bertpt.data.tokens.store import TokenStore
from bertpt.model.pretraining import BertForPreTraining
from bertpt.predict.fill_mask import Predictor
from bertpt.train import loop
from bertpt.train.evaluate import Predictions, predict_heldout
from bertpt.train.pretrain import heldout_stream, pretrain
from bertpt.train.reports.board import Board, escaped, table
from bertpt.train.reports.breakdown import breakdown, frequency_bands
from bertpt.train.reports.dynamics import Dynamics, block_of
from bertpt.train.reports.graph import shapes_of, traced
from bertpt.train.reports.logs import read_metrics
from bertpt.train.updates.optim import build_optimizer

PLUGINS = ("scalars", "histograms", "text", "custom_scalars", "hparams")
LINES = ("", "train", "heldout", "unigram", "chance")


def read(directory: Path) -> EventAccumulator:
    board = EventAccumulator(str(directory), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return board.Reload()


def steps_of(directory: Path) -> dict[str, list[int]]:
    """The steps of everything that has steps: scalars, histograms, texts, layouts.

    By the reader of the program itself, to which all of these are tensors. The other one drops no tensors that were
    written before a kill.
    """
    board = plugin_event_accumulator.EventAccumulator(str(directory), tensor_size_guidance=dict.fromkeys(PLUGINS, 0))
    board.Reload()
    return {tag: [event.step for event in board.Tensors(tag)] for tag in board.Tags()["tensors"]}


def text_of(board: EventAccumulator, name: str, index: int = -1) -> str:
    return board.Tensors(f"{name}/text_summary")[index].tensor_proto.string_val[0].decode("utf-8")


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that was killed before its first checkpoint, and twice after one."""
    settings = {"eval_every": 4, "save_every": 6, "histograms": True}
    config = tiny.config(tmp_path_factory.mktemp("board"), train=settings)
    count = 0
    made = loop.train_step

    def killed(*arguments: Any, **options: Any) -> Tensor:
        nonlocal count
        count += 1
        if count in (5, 5 + 12, 5 + 12 + 8):
            raise MemoryError
        return made(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", killed)
        for _ in range(3):
            with pytest.raises(MemoryError):
                pretrain(config, say=quiet)
            time.sleep(1)  # TensorBoard's files bear the second of their start, and within one they are in no order
        return pretrain(config, say=quiet).directory


def test_no_step_stands_twice_in_anything_after_kills(run: Path) -> None:
    entries = read_metrics(run / "metrics.jsonl")
    for line in LINES:
        found = steps_of(run / "tb" / line)
        assert found
        for tag, steps in found.items():
            assert steps == sorted(set(steps)), f"{line}: {tag}"
            if line in ("train", "heldout") and not tag.startswith(("weights/", "weights_gradients/")):
                assert steps == [entry["step"] for entry in entries if entry["kind"] == line], tag
    found = steps_of(run / "tb" / "train")
    assert {tuple(steps) for tag, steps in found.items() if tag.startswith(("weights/", "weights_gradients/"))} == {
        (4, 8, 12, 16, 20)
    }
    assert {name for name in found if name.startswith("weights/bert.embeddings")}
    assert steps_of(run / "tb")["run/config/text_summary"] == [0, 6, 12]


def test_losses_and_accuracies_stand_first_on_the_axes_of_their_reference_lines(run: Path, tiny: Tiny) -> None:
    boards = {line: read(run / "tb" / line) for line in LINES[1:]}
    groups = sorted({tag.partition("/")[0] for board in boards.values() for tag in board.Tags()["scalars"]})
    assert groups[0] == "learning"
    assert min(steps_of(run / "tb" / "train")).startswith("learning/")  # histograms stand behind
    for tag in ("learning/mlm_loss", "learning/mlm_accuracy"):
        assert all(tag in board.Tags()["scalars"] for board in boards.values())
    for tag in ("learning/nsp_loss", "learning/nsp_accuracy"):
        assert [line for line, board in boards.items() if tag in board.Tags()["scalars"]] == [
            "train",
            "heldout",
            "chance",
        ]
    store = TokenStore.open(finished_store(tiny.config(run.parent)))
    counts = np.delete(np.asarray(store.unigram) + 1, sorted(store.special_ids.values()))

    def constant(line: str, tag: str) -> float:
        first, last = boards[line].Scalars(tag)
        assert (first.step, last.step, first.value) == (0, 20, last.value)
        return float(first.value)

    assert constant("unigram", "learning/mlm_loss") == pytest.approx(scipy.stats.entropy(counts), rel=1e-6)
    assert constant("unigram", "learning/mlm_accuracy") == pytest.approx(counts.max() / counts.sum(), rel=1e-6)
    assert constant("chance", "learning/mlm_loss") == pytest.approx(math.log(len(counts)), rel=1e-6)
    assert constant("chance", "learning/mlm_accuracy") == pytest.approx(1 / len(counts), rel=1e-6)
    assert constant("chance", "learning/nsp_loss") == pytest.approx(math.log(2), rel=1e-6)
    evaluated = json.loads((run / "eval.json").read_text("utf-8")) if (run / "eval.json").exists() else None
    assert evaluated is None or 0.5 <= constant("chance", "learning/nsp_accuracy") < 1


def test_every_line_of_the_custom_charts_is_there(run: Path) -> None:
    [event] = read(run / "tb").Tensors("custom_scalars__config__")[-1:]
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    drawn = {tag for line in LINES for tag in read(run / "tb" / line).Tags()["scalars"]}
    expressions = [e for category in layout.category for chart in category.chart for e in chart.multiline.tag]
    assert len(expressions) > 5
    for expression in expressions:
        assert any(re.match(expression, tag) for tag in drawn), expression


def test_the_texts_are_the_configuration_the_corpus_and_what_the_model_says(run: Path, tiny: Tiny) -> None:
    root = read(run / "tb")
    lines = text_of(root, "run/config").split("\n")
    assert "".join(line.removeprefix("    ") + "\n" for line in lines) == (run / "config.yaml").read_text("utf-8")
    corpus = text_of(root, "run/corpus")
    store = TokenStore.open(finished_store(tiny.config(run.parent)))
    assert f"| {len(store.train.ids):,} | {len(store.heldout.ids):,} |" in corpus
    heldout = read(run / "tb" / "heldout")
    rows = text_of(heldout, "heldout/sentences").split("\n")[2:]
    assert len(rows) == 5
    predictor = Predictor.open(run, say=quiet)  # its newest checkpoint, which was scored last
    for row in rows:
        sentence, original, guesses = (html.unescape(re.sub(r"\\(.)", r"\1", c)) for c in row[2:-2].split(" | "))
        assert sentence.count("[MASK]") == 1
        assert original.isalpha()
        [filled] = predictor.fill_mask(sentence)
        said = [f"{token} {share:.0%}" for token, share in zip(filled.tokens, filled.probabilities, strict=True)]
        assert guesses == " · ".join(said)
    assert text_of(heldout, "heldout/sentences", 0) != text_of(heldout, "heldout/sentences")


def test_the_row_of_hyperparameters_leads_to_final_metrics(run: Path) -> None:
    root = read(run / "tb")
    parts = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content)
        for tag, metadata in root.summary_metadata.items()
        if tag.startswith("_hparams_/")
    }
    started = parts["_hparams_/session_start_info"].session_start_info.hparams
    assert started["lr"].number_value == pytest.approx(1e-3)
    assert started["layers"].number_value == 1
    assert started["length"].string_value == "32 48"
    assert parts["_hparams_/session_end_info"].session_end_info.status == 1  # success
    experiment = parts["_hparams_/experiment"].experiment
    assert {info.name for info in experiment.hparam_infos} == set(started)
    for info in experiment.metric_infos:
        assert info.name.tag in read(run / "tb" / info.name.group).Tags()["scalars"]


def test_the_graph_of_a_run_names_its_layers(run: Path) -> None:
    names = {node.name for node in graph_of(run / "tb").node}
    assert any("Layer[0]/Attention[attention]" in name for name in names)
    assert not any("Layer[1]" in name for name in names)


def graph_of(directory: Path) -> Any:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    graph = read(directory).Graph()
    return GraphDef.FromString(graph) if isinstance(graph, bytes) else graph


@pytest.mark.parametrize("config", ["base-2018", "demo"])
def test_the_graph_of_any_configuration_is_drawn_without_data(config: str, tmp_path: Path, capsys: Any) -> None:
    before = torch.get_rng_state()
    assert bertpt(["graph", "--config", config, "--out", str(tmp_path / "g"), "--json"]) == 0
    assert torch.equal(torch.get_rng_state(), before)
    shown = json.loads(capsys.readouterr().out)
    assert shown["directory"] == str(tmp_path / "g")
    model = load_config(config).model
    nodes = graph_of(tmp_path / "g").node
    layers = {int(found[1]) for node in nodes if (found := re.search(r"/Layer\[(\d+)\]/", node.name))}
    assert layers == set(range(model.num_hidden_layers))
    shapes = {tuple(d.size for d in s.dim) for node in nodes for s in node.attr["_output_shapes"].list.shape}
    assert (16, model.hidden_size) in shapes
    assert (3, load_config(config).tokenizer.vocab_size) in shapes


def test_a_model_without_pairs_has_a_graph_too() -> None:
    config = load_config("tiny", ["pairs.rule=none"])
    assert len(traced(config, shapes_of(config, 1000))[0].node) > 20


def test_the_graph_goes_where_it_disturbs_no_run(tmp_path: Path, capsys: Any) -> None:
    assert bertpt(["graph", "--config", "tiny", "--runs-dir", str(tmp_path)]) == 0
    assert (tmp_path / "graphs" / "tiny").is_dir()
    assert "tensorboard" in capsys.readouterr().err
    assert bertpt(["graph", "--config", "tiny", "--set", "model={init_from: x}"]) == 2
    capsys.readouterr()
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert bertpt(["graph", "--config", "tiny", "--out", str(out)]) == 2
        assert capsys.readouterr().err == (
            f"bertpt: {tmp_path / 'file'}: is a file, and the graph goes into a folder; name another with --out\n"
        )


# --- what is measured --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["adamw", "lamb", "uncorrected"])
@pytest.mark.parametrize("clip", [0.01, 1e6])
def test_norms_and_updates_of_each_block_are_those_of_their_weights(kind: str, clip: float) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 11, "num_attention_heads": 2, "max_position_embeddings": 8}
    model = BertForPreTraining(load_config("tiny").model.model_copy(update=shape), 50)
    settings = {"kind": "lamb"} if kind == "lamb" else {"bias_correction": kind == "adamw"}
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.01, **settings))  # type: ignore[arg-type]
    dynamics = Dynamics(model, optimizer, clip)
    for looked in (False, True):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        dynamics.look(norms=looked, histograms=False)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        if not looked:
            assert dynamics.values(norm) == {}
    found = dynamics.values(norm)
    assert dynamics.histograms() == {}

    def whole(tensors: dict[str, Tensor], prefix: str) -> float:
        return math.sqrt(sum(float(t.double().square().sum()) for n, t in tensors.items() if n.startswith(prefix)))

    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    prefixes = {"embeddings": "bert.embeddings.", **{f"layer_{i}": f"bert.encoder.layer.{i}." for i in range(11)}}
    for block, prefix in prefixes.items():
        assert found[f"gradient_norm_{block}"] == pytest.approx(whole(gradients, prefix), rel=1e-4)
        assert found[f"update_ratio_{block}"] == pytest.approx(whole(moved, prefix) / whole(before, prefix), rel=1e-4)
    assert found["update_ratio"] == pytest.approx(whole(moved, "") / whole(before, ""), rel=1e-4)
    assert math.hypot(*(v for n, v in found.items() if n.startswith("gradient_norm_"))) == pytest.approx(norm, rel=1e-4)
    assert len(found) == 2 * 13 + 1


def test_every_parameter_of_a_task_has_its_block() -> None:
    assert block_of("encoder.bert.encoder.layer.10.output.dense.weight") == "layer_10"
    assert block_of("bert.embeddings.LayerNorm.bias") == "embeddings"
    assert block_of("bert.pooler.dense.bias") == block_of("head.weight") == "heads"


def test_groups_of_words_and_the_calibration_equal_a_count_by_hand(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(tmp_path)
    store = TokenStore.open(finished_store(config))
    torch.manual_seed(1)
    model = BertForPreTraining(config.model.model_copy(update={"initializer_range": 0.5}), store.vocab_size)
    stream = heldout_stream(store, config, 32)
    predictions = predict_heldout(model, stream, max_rows=40)
    found = breakdown(predictions, np.asarray(store.unigram))
    # Whole words, by the tokens of the unmasked rows.
    continues, right = store.continues_word, predictions.mlm_right
    whole: list[bool] = []
    for start in range(0, 40, stream.batch_size):
        batch = stream.rows(start, min(stream.batch_size, 40 - start))
        assert batch.masked_positions is not None
        assert batch.masked_labels is not None
        ids = batch.input_ids.tolist()
        for at, label in zip(batch.masked_positions.tolist(), batch.masked_labels.tolist(), strict=True):
            ids[at] = label
        whole += [not continues[ids[at]] and not continues[ids[at + 1]] for at in batch.masked_positions.tolist()]
    assert predictions.whole_word.tolist() == whole
    assert 0 < sum(whole) < len(whole)
    assert found["mlm_accuracy_whole_word"] == pytest.approx(right[np.array(whole)].mean())
    assert found["mlm_accuracy_word_piece"] == pytest.approx(right[~np.array(whole)].mean())
    order = sorted(range(store.vocab_size), key=lambda i: -int(store.unigram[i]))
    often = [bool(r) for r, label in zip(right, predictions.labels, strict=True) if label in set(order[:100])]
    assert found["mlm_accuracy_rank_1_to_100"] == pytest.approx(np.mean(often))
    assert "mlm_accuracy_rank_from_101" in found
    # Calibration, bin by bin.
    certainty = [max(math.exp(-nll), 1 - math.exp(-nll)) for nll in predictions.nsp_nll]
    gap = 0.0
    for index in range(10):
        low, high = 0.5 + index / 20, 0.5 + (index + 1) / 20
        inside = [i for i, c in enumerate(certainty) if low <= c < high or (index == 9 and c >= high)]
        if inside:
            accuracy = float(np.mean([predictions.nsp_right[i] for i in inside]))
            gap += abs(accuracy - float(np.mean([certainty[i] for i in inside]))) * len(inside) / len(certainty)
    assert found["nsp_calibration_error"] == pytest.approx(gap, abs=1e-9)
    assert found["nsp_confidence"] == pytest.approx(np.mean(certainty))


def test_bands_hold_every_id_once_and_an_empty_group_is_no_number() -> None:
    counts = np.random.default_rng(0).integers(0, 9, 30_000)
    bands = frequency_bands(counts)
    assert list(bands) == ["rank_1_to_100", "rank_101_to_1000", "rank_1001_to_10000", "rank_from_10001"]
    assert (sum(band.astype(int) for band in bands.values()) == 1).all()
    assert counts[bands["rank_1_to_100"]].min() >= counts[bands["rank_from_10001"]].max()
    none = np.zeros(0)
    nothing = Predictions(none, none, none, none.astype(bool), none.astype(int), none, none, none, none)  # type: ignore[arg-type]
    assert math.isnan(breakdown(nothing, counts)["mlm_accuracy_whole_word"])


# --- how it is shown ---------------------------------------------------------------------------------------------


def test_any_text_stands_in_a_table_as_it_is() -> None:
    hostile = ["a | b", "**not bold** _nor_ `code`", "<b>&amp;</b> <script>x</script>", "[MASK] (x) #1 ~ C:\\n"]
    with warnings.catch_warnings():  # a part of bleach in it is deprecated
        warnings.simplefilter("ignore")
        from tensorboard.plugin_util import markdown_to_safe_html
    shown = markdown_to_safe_html(table(["one", "two"], [[text, "x"] for text in hostile]))
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", shown)]
    assert cells == [cell for text in hostile for cell in (text, "x")]
    assert escaped("plain words, 12%") == "plain words, 12%"


def test_numbers_that_are_none_are_shown_and_break_nothing(tmp_path: Path) -> None:
    board = Board(tmp_path / "tb", 0, 10)
    board.scalars("train", 1, {"mlm_loss": math.nan})
    board.histograms({"weights/a": torch.tensor([math.nan, math.inf]), "weights/b": torch.tensor([1.0, math.nan])}, 1)
    board.close()
    found = read(tmp_path / "tb" / "train")
    assert math.isnan(found.Scalars("learning/mlm_loss")[0].value)
    assert found.Tags()["histograms"] == ["weights/b"]
    assert found.Histograms("weights/b")[0].histogram_value.num == 1

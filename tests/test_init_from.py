"""Going on from trained weights: own runs, checkpoints and directories of others, on new text."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from model_helpers import reference, small
from safetensors.torch import load_file
from torch import Tensor
from train_helpers import Tiny, quiet, write_config

from bertpt.cli.main import run as bertpt
from bertpt.config import Config, load_config, validate
from bertpt.data.corpus.documents import iter_documents
from bertpt.data.locate import documents_dir, tokenizer_dir
from bertpt.data.tokenizer.training import train_tokenizer
from bertpt.data.tokenizer.wordpiece import load_tokenizer
from bertpt.data.tokens.prepare import prepare
from bertpt.errors import RequestError
from bertpt.interop.continuing import pretrain, read_initial
from bertpt.model.pretraining import BertForPreTraining
from bertpt.train import loop
from bertpt.train.checkpoints.checkpoint import checkpoints
from bertpt.train.evaluation import evaluate_run
from bertpt.train.initial import start_from, with_shape
from bertpt.train.pretrain import pretrain as pretrain_alone
from bertpt.train.rundir import open_run

WORDS, POSITIONS = "bert.embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight"
BIAS = "cls.predictions.bias"
ONE_UPDATE = {"phases": [{"length": 32, "steps": 1, "batch_size": 8}], "schedule": {"warmup_steps": 0}}


@pytest.fixture(scope="module")
def old(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: one layer, 32 wide, 48 positions, a vocabulary of 300."""
    runs = tmp_path_factory.mktemp("old")
    return pretrain(tiny.config(runs, name="old", train=ONE_UPDATE), say=quiet).directory


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(checkpoints(run)[-1][1] / "model.safetensors")


def going_on(tiny: Tiny, runs: Path, place: Path, **sections: Any) -> Config:
    """A configuration that says nothing of the shape, nor of the tokenizer."""
    value = tiny.plain(runs, name="new", train=ONE_UPDATE)
    del value["tokenizer"]
    value["model"] = {"init_from": str(place)}
    for name, section in sections.items():
        value[name] = value.get(name, {}) | section if isinstance(section, dict) else section
    return validate(value)


def stages(config: Config, say: Callable[[str], None] = quiet) -> Config:
    """The data stages that depend on the tokenizer."""
    train_tokenizer(config, say=quiet, progress=False)
    prepare(config, say=quiet, progress=False)
    return config


def started(config: Config) -> tuple[BertForPreTraining, list[str]]:
    """The model of a configuration before its first update, and what was said."""
    initial = read_initial(config, say=quiet)
    assert initial is not None
    tokenizer = load_tokenizer(tokenizer_dir(config))
    torch.manual_seed(5)
    model = BertForPreTraining(with_shape(config, initial).model, tokenizer.vocab_size, nsp=config.pairs.rule != "none")
    return model, start_from(model, initial, tokenizer)


def frequent_words(config: Config, count: int) -> list[str]:
    """The most frequent words of the corpus that the trained tokenizer cuts into pieces."""
    known = set(load_tokenizer(tokenizer_dir(config)).tokens)
    found: Counter[str] = Counter()
    for document in iter_documents(documents_dir(config), "train"):
        found.update(word for word in document.text.lower().split() if word.isascii() and word.isalpha())
    return [word for word, _ in found.most_common() if word not in known][:count]


# --- the weights, the shape and the tokenizer are those of the place -------------------------------------------------


@pytest.mark.parametrize("what", ["run", "checkpoint"])
def test_the_model_begins_as_the_one_before_and_goes_on(tiny: Tiny, old: Path, tmp_path: Path, what: str) -> None:
    place = old if what == "run" else checkpoints(old)[-1][1]
    config = stages(going_on(tiny, tmp_path, place))
    model, said = started(config)
    before = weights(old)
    assert {name: torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()} == dict.fromkeys(
        before, True
    )
    assert len(said) == 1
    assert f"{len(before)} tensors of {sum(t.numel() for t in before.values()):,} numbers" in said[0]
    run = pretrain(config, say=quiet)
    assert run.config.model.hidden_size == 32
    assert run.config.model.max_position_embeddings == 48
    assert load_tokenizer(run.tokenizer).tokens == load_tokenizer(old / "tokenizer").tokens
    # One update of a rate of 1e-3 moves no weight by much more.
    after = weights(run.directory)
    assert max(float((after[name] - before[name]).abs().max()) for name in before) < 2e-3
    assert any(not torch.equal(after[name], before[name]) for name in before)
    # It is a run like any other.
    assert open_run(run.directory).config == run.config
    assert evaluate_run(run.directory, max_rows=8, say=quiet).step == 1


def test_a_directory_of_others_gives_weights_shape_and_tokenizer(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    shape = small(hidden_size=16, num_attention_heads=2, max_position_embeddings=40, intermediate_size=48)
    ours = BertForPreTraining(shape, 300).state_dict()
    place = tmp_path / "theirs"
    reference(shape, 300, ours).save_pretrained(place)
    for file in (old / "tokenizer").glob("*"):
        if file.name != "manifest.json":
            shutil.copy(file, place / file.name)
    config = stages(going_on(tiny, tmp_path, place, model={"max_position_embeddings": 48}))
    model, said = started(config)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor[: len(ours[name])], ours[name]), name
    assert said[1:] == ["positions: 40 kept, 8 new at random"]
    lines: list[str] = []
    run = pretrain(config, say=lines.append)
    assert (run.config.model.hidden_size, run.config.model.ffn_size) == (16, 48)
    assert run.config.model.num_hidden_layers == 2
    assert any(line.startswith(f"starting from {place}") for line in lines)


def test_keys_of_the_shape_that_agree_are_accepted_and_others_refused_together(
    tiny: Tiny, old: Path, tmp_path: Path
) -> None:
    agreeing = stages(going_on(tiny, tmp_path, old, model={"hidden_size": 32, "intermediate_size": 128}))
    assert pretrain(agreeing, say=quiet).config.model.num_attention_heads == 2
    other = going_on(tiny, tmp_path, old, name="other", model={"hidden_size": 64, "num_hidden_layers": 2})
    with pytest.raises(RequestError) as caught:
        pretrain(other, say=quiet)
    assert caught.value.faults == [
        f"model.hidden_size: 64 is set, the weights of {old} have 32; leave it out",
        f"model.num_hidden_layers: 2 is set, the weights of {old} have 1; leave it out",
    ]
    assert not (tmp_path / "other").exists()


def test_dropout_and_padded_rows_are_free(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    free = {"hidden_dropout_prob": 0.0, "pad_vocab_to_multiple_of": 64}
    run = pretrain(stages(going_on(tiny, tmp_path, old, model=free)), say=quiet)
    assert weights(run.directory)[WORDS].shape == (320, 32)
    again = pretrain(going_on(tiny, tmp_path, run.directory, name="again"), say=quiet)
    assert weights(again.directory)[WORDS].shape == (300, 32)


def test_a_shape_that_is_inherited_gives_way_to_the_weights_one_that_is_set_does_not(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: demo\nmodel: {init_from: runs/old}\n", encoding="utf-8")
    model = load_config(tmp_path / "mine.yaml").model
    assert "hidden_size" not in model.model_fields_set
    set_here = ["model.hidden_size=64", "model.init_from=runs/old"]
    for order in (set_here, set_here[::-1]):
        model = load_config("demo", order).model
        assert {"hidden_size", "num_hidden_layers", "init_from"} & model.model_fields_set == {
            "hidden_size",
            "init_from",
        }


# --- longer rows ----------------------------------------------------------------------------------------------------


def test_more_positions_keep_the_trained_ones(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    longer = {"max_position_embeddings": 96}
    train = {"phases": [{"length": 96, "steps": 1, "batch_size": 8}]}
    config = stages(going_on(tiny, tmp_path, old, model=longer, train=train))
    model, said = started(config)
    rows = model.state_dict()[POSITIONS]
    assert torch.equal(rows[:48], weights(old)[POSITIONS])
    assert rows[48:].abs().max() <= 0.04  # as a new model's: truncated at two standard deviations of 0.02
    assert rows[48:].std() > 0.01
    assert said[1] == "positions: 48 kept, 48 new at random"
    assert pretrain(config, say=quiet).config.model.max_position_embeddings == 96


def test_rows_longer_than_the_trained_positions_and_fewer_positions_are_refused(
    tiny: Tiny, old: Path, tmp_path: Path
) -> None:
    train = {"phases": [{"length": 96, "steps": 1, "batch_size": 8}]}
    config = stages(going_on(tiny, tmp_path, old, train=train))
    with pytest.raises(RequestError, match=r"train\.phases\.0\.length: 96 is above model\.max_position_embeddings 48"):
        pretrain(config, say=quiet)
    fewer = going_on(tiny, tmp_path, old, model={"max_position_embeddings": 40})
    with pytest.raises(RequestError, match=r"max_position_embeddings: 40 is set, .* have 48"):
        pretrain(fewer, say=quiet)
    assert not (tmp_path / "new").exists()


# --- more words -----------------------------------------------------------------------------------------------------


def test_new_words_begin_as_the_mean_of_their_pieces_and_old_rows_are_kept(
    tiny: Tiny, old: Path, tmp_path: Path
) -> None:
    added = [*frequent_words(tiny.config(tmp_path), 20), "日"]
    file = tmp_path / "words.txt"
    file.write_text("".join(f"{word}\n" for word in added), encoding="utf-8")
    config = stages(going_on(tiny, tmp_path, old, tokenizer={"extend_from": str(file)}))
    model, said = started(config)
    assert said[1] == "vocabulary: 300 rows kept, 21 new (20 as the mean of their pieces, 1 at random)"
    before, now = weights(old), model.state_dict()
    tokenizer = load_tokenizer(old / "tokenizer")
    for name in (WORDS, BIAS):
        assert torch.equal(now[name][:300], before[name])
        for index, word in enumerate(added[:20], 300):
            [pieces] = tokenizer.encode_sentences([word])
            assert len(pieces) > 1
            expected = torch.stack([before[name][piece] for piece in pieces]).mean(0)
            torch.testing.assert_close(now[name][index], expected)
    # No piece was known of the last one.
    assert 0 < now[WORDS][320].abs().max() <= 0.04
    lines: list[str] = []
    run = pretrain(config, say=lines.append)
    assert "vocabulary: 300 rows kept, 21 new (20 as the mean of their pieces, 1 at random)" in lines
    assert load_tokenizer(run.tokenizer).tokens[300:] == added
    assert weights(run.directory)[WORDS].shape == (321, 32)


def test_another_vocabulary_or_other_letters_are_refused(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    tokens = load_tokenizer(old / "tokenizer").tokens
    shuffled = tmp_path / "vocab.txt"
    shuffled.write_text("".join(f"{t}\n" for t in [*tokens[:10], tokens[11], tokens[10], *tokens[12:]]), "utf-8")
    config = going_on(tiny, tmp_path, old, tokenizer={"from": str(shuffled)})
    with pytest.raises(RequestError, match=r"tokenizer\.from: .*vocab\.txt: does not fit .* entry 10 is"):
        train_tokenizer(config, say=quiet, progress=False)
    cased = tmp_path / "cased.txt"
    cased.write_text("".join(f"{t}\n" for t in tokens), "utf-8")
    config = going_on(tiny, tmp_path, old, tokenizer={"from": str(cased), "lowercase": False})
    with pytest.raises(RequestError, match=r"lowercase=False.* trained with .*lowercase=True"):
        train_tokenizer(config, say=quiet, progress=False)
    same = going_on(tiny, tmp_path, old, tokenizer={"from": str(cased)})
    assert pretrain(stages(same), say=quiet).config.tokenizer.from_ == str(cased)


# --- heads ----------------------------------------------------------------------------------------------------------


def test_absent_heads_are_new_and_named_and_unused_ones_left_out(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = stages(going_on(tiny, tmp_path, old, pairs={"rule": "none"}, name="alone"))
    alone = pretrain(config, say=said.append)
    assert "left out, for pairs.rule is none: pooler, next-sentence head" in said
    assert not [name for name in weights(alone.directory) if "pooler" in name or "seq_relationship" in name]
    config = going_on(tiny, tmp_path, alone.directory)
    model, lines = started(config)
    assert lines[1] == "newly initialised, for the weights lack them: pooler, next-sentence head"
    state = model.state_dict()
    assert 0 < state["bert.pooler.dense.weight"].abs().max() <= 0.04
    assert torch.equal(state[BIAS], weights(alone.directory)[BIAS])
    assert weights(pretrain(config, say=quiet).directory)["cls.seq_relationship.weight"].shape == (2, 32)


def test_anything_else_that_is_missing_or_of_another_shape_is_refused(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    config = stages(going_on(tiny, tmp_path, old))
    initial = read_initial(config, say=quiet)
    assert initial is not None
    tokenizer = load_tokenizer(old / "tokenizer")
    model = BertForPreTraining(initial.model, 300)
    broken = dict(initial.weights)
    del broken["cls.predictions.transform.dense.bias"]  # half a head
    broken["bert.extra"] = torch.zeros(1)
    broken["bert.embeddings.LayerNorm.bias"] = torch.zeros(31)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RequestError) as caught:
        start_from(model, type(initial)("here", initial.model, broken, tokenizer), tokenizer)
    line = str(caught.value)
    assert "here" in line
    assert "missing cls.predictions.transform.dense.bias" in line
    assert "unexpected bert.extra" in line
    assert "bert.embeddings.LayerNorm.bias has shape [31], the model [32]" in line
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# --- a run remembers what it began from -----------------------------------------------------------------------------


def test_a_resume_with_other_initial_weights_is_refused_and_with_the_same_elsewhere_accepted(
    tiny: Tiny, old: Path, tmp_path: Path
) -> None:
    config = stages(going_on(tiny, tmp_path, old))
    run = pretrain(config, say=quiet)
    said: list[str] = []
    assert pretrain(config, say=said.append).directory == run.directory
    assert "nothing to do" in said[-1]
    moved = tmp_path / "moved"
    shutil.copytree(old, moved)
    pretrain(going_on(tiny, tmp_path, moved), say=said.append)
    assert "nothing to do" in said[-1]
    another = pretrain(tiny.config(tmp_path, name="another", train=ONE_UPDATE | {"seed": 1}), say=quiet).directory
    with pytest.raises(RequestError) as caught:
        pretrain(going_on(tiny, tmp_path, another), say=quiet)
    assert [line.split(":")[0].strip() for line in caught.value.faults[1:]] == ["inputs.initial"]
    plain = tiny.config(tmp_path, name="new", train=ONE_UPDATE)
    with pytest.raises(RequestError, match=r"inputs\.initial: '[0-9a-f]{64}' there, None now"):
        pretrain(plain, say=quiet)


def test_a_run_can_be_evaluated_when_what_it_began_from_has_gone(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    shutil.copytree(old, place)
    run = pretrain(stages(going_on(tiny, tmp_path, place)), say=quiet)
    before = evaluate_run(run.directory, max_rows=8, say=quiet)
    shutil.rmtree(place)
    assert evaluate_run(run.directory, max_rows=8, say=quiet) == before


def test_a_run_goes_on_when_what_it_began_from_has_gone(
    tiny: Tiny, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(old, tmp_path / "old")
    train = {"phases": [{"length": 32, "steps": 4, "batch_size": 8}], "save_every": 1}
    whole = stages(going_on(tiny, tmp_path / "whole", tmp_path / "old", train=train))
    wanted = pretrain(whole, say=quiet).directory
    config = going_on(tiny, tmp_path / "runs", tmp_path / "old", train=train)
    made, count = loop.train_step, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise MemoryError
        return made(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", killed)
        with pytest.raises(MemoryError):
            pretrain(config, say=quiet)
    shutil.rmtree(tmp_path / "old")
    said: list[str] = []
    run = pretrain(config, say=said.append).directory
    assert "old: not there any more; " in said[0]
    assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in weights(wanted).items())
    with pytest.raises(RequestError, match=r"old: no such directory"):  # there is no checkpoint to go on from
        pretrain(config.model_copy(update={"name": "other"}), say=quiet)
    wider = config.model_copy(update={"model": config.model.model_copy(update={"hidden_size": 36})})
    wider.model.model_fields_set.add("hidden_size")
    with pytest.raises(RequestError, match=r"model\.hidden_size: 32 there, 36 now"):
        pretrain(wider, say=quiet)


def test_the_pipeline_of_a_finished_run_needs_no_longer_what_it_began_from(
    tiny: Tiny, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(old, tmp_path / "old")
    value = tiny.plain(tmp_path / "runs", name="new", train=ONE_UPDATE) | {
        "model": {"init_from": str(tmp_path / "old")}
    }
    del value["tokenizer"]
    path = write_config(tmp_path / "mine.yaml", value)
    assert bertpt(["run", "--config", str(path), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    shutil.rmtree(tmp_path / "old")
    assert bertpt(["run", "--config", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["scores"] == before["scores"]
    assert "old: not there any more; " in shown.err
    (tmp_path / "runs" / "new" / "summary.json").unlink()
    assert bertpt(["run", "--config", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["scores"] == before["scores"]
    assert again["places"]["tokenizer"] == str(tmp_path / "runs" / "new" / "tokenizer")
    assert bertpt(["run", "--config", str(path), "--overwrite"]) == 2
    assert "old: no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "now"), [("next", "order"), ("order", "next"), ("next", "next"), ("next", "none")])
def test_a_head_that_learnt_pairs_of_another_rule_is_spoken_of(
    tiny: Tiny, tmp_path: Path, before: str, now: str
) -> None:
    value = tiny.config(tmp_path / "old", name="old", pairs={"rule": before}, train=ONE_UPDATE)
    run = pretrain(value, say=quiet).directory
    for place in (run, checkpoints(run)[-1][1], run / "best"):
        said: list[str] = []
        read_initial(going_on(tiny, tmp_path, place, pairs={"rule": now}), say=said.append)
        spoken = [line for line in said if f"under pairs.rule={before} and goes on under {now}" in line]
        assert len(spoken) == (now not in ("none", before)), place


def test_a_run_cannot_begin_from_itself_even_to_overwrite_it(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    run = tmp_path / "new"
    shutil.copytree(old, run)
    for place in (run, checkpoints(run)[-1][1]):
        config = going_on(tiny, tmp_path, place)
        stages(config)
        with pytest.raises(RequestError, match=r"of this very run; set another name"):
            pretrain(config, overwrite=True, say=quiet)
    assert weights(run).keys() == weights(old).keys()


def test_weights_are_never_passed_over_in_silence(tiny: Tiny, old: Path, tmp_path: Path) -> None:
    config = stages(going_on(tiny, tmp_path, old))
    with pytest.raises(RequestError, match=r"init_from: '.*' is set, no weights were handed over"):
        pretrain_alone(config, say=quiet)
    with pytest.raises(RequestError, match=r"init_from: None is set, weights of .* were handed over"):
        pretrain_alone(tiny.config(tmp_path), initial=read_initial(config, say=quiet), say=quiet)
    assert not list(tmp_path.glob("*/config.yaml"))


def test_a_place_that_is_nothing_of_the_kind_ends_with_2_and_leaves_nothing(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = tiny.plain(tmp_path / "runs", train=ONE_UPDATE) | {"model": {"init_from": str(tmp_path / "nothing")}}
    path = write_config(tmp_path / "mine.yaml", value)
    for command in ("train-tokenizer", "prepare", "pretrain", "run"):
        assert bertpt([command, "--config", str(path)]) == 2
        assert str(tmp_path / "nothing") in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_whole_pipeline_and_its_dry_run_go_on_from_weights(
    tiny: Tiny, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = tiny.plain(tmp_path / "runs", name="new", train=ONE_UPDATE) | {"model": {"init_from": str(old)}}
    path = write_config(tmp_path / "mine.yaml", value)
    assert bertpt(["run", "--config", str(path), "--dry-run"]) == 0
    assert not (tmp_path / "runs").exists()
    assert bertpt(["run", "--config", str(path)]) == 0
    assert f"starting from {old}" in capsys.readouterr().err
    assert open_run(tmp_path / "runs" / "new").config.model.hidden_size == 32

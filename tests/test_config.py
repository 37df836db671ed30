"""Configuration: typed YAML, faults told together, inheritance, overrides, and the shipped files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertpt.config import as_yaml, load_config, shipped_configs, shipped_corpora
from bertpt.config.load import find_config
from bertpt.config.yaml import dump_yaml, parse_yaml
from bertpt.errors import RequestError

MINIMAL = """
corpus: {sources: [{kind: docstrings}]}
train:
  phases: [{steps: 100}]
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def _write(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.fixture
def minimal(write: Any) -> Path:
    return Path(write(MINIMAL))


def faults(path: Path | str, *overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        load_config(path, overrides)
    assert all("\n" not in fault for fault in caught.value.faults)
    return caught.value.faults


# --- YAML ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1e4", "1.e-4", "+1e-4", ".5e1", "1.0", "-2e+3"])
def test_numbers_with_exponents_are_numbers(text: str) -> None:
    assert parse_yaml(text, "x") == float(text)
    assert isinstance(parse_yaml(text, "x"), float)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_that_python_writes_is_read_as_itself(value: float) -> None:
    assert parse_yaml(repr(value), "x") == value
    assert parse_yaml(dump_yaml({"a": value}), "x") == {"a": value}


@settings(max_examples=300)
@example("0E0")
@example("010")
@example("1:30")
@example("2026-01-01")
@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_every_text_survives_writing_and_reading(value: str) -> None:
    assert parse_yaml(dump_yaml({"a": value}), "x") == {"a": value}


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "n", "On", "NO"])
def test_words_that_yaml_1_1_takes_for_booleans_are_words(word: str) -> None:
    assert parse_yaml(word, "x") == word
    # An emitter of YAML 1.1 quotes them, so that other readers see words too.
    assert yaml.safe_load(dump_yaml({"a": word})) == {"a": word}


def test_true_and_false_are_booleans() -> None:
    assert parse_yaml("[true, False]", "x") == [True, False]


def test_an_unknown_language_is_refused_with_the_configuration(minimal: Path) -> None:
    with pytest.raises(RequestError, match=r"corpus\.language: no language has the code 'german'; did you mean de"):
        load_config(minimal, ["corpus.language=german"])
    assert load_config(minimal, ["corpus.language=german", "corpus.sentences=lines"]).corpus.language == "german"


def test_language_no_is_norwegian(minimal: Path) -> None:
    assert load_config(minimal, ["corpus.language=no"]).corpus.language == "no"


@pytest.mark.parametrize(
    ("text", "where"),
    [("a: 1\nb: 2\na: 3\n", ":3:1"), ("a: {b: 1, b: 2}\n", ":1:"), ("a: [1\n", ":2:1"), ("a: \t- x: ]\n", ":1:")],
)
def test_broken_or_doubled_yaml_names_line_and_column(write: Any, text: str, where: str) -> None:
    (fault,) = faults(write(text))
    assert where in fault
    assert "mine.yaml" in fault


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.strip().encode())
    assert load_config(path).train.phases[0].steps == 100


def test_a_file_that_is_no_utf8_or_no_mapping_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: \xff")
    assert "mine.yaml" in faults(path)[0]
    path.write_text("- 1", encoding="utf-8")
    assert "mapping" in faults(path)[0]


# --- types, unknown keys, impossible combinations -----------------------------------------------------------------


def test_learning_rate_in_exponent_form_is_a_number(write: Any) -> None:
    config = load_config(write(MINIMAL + "  optimizer: {lr: 1e-4, eps: 1e-6}\n"))
    assert config.train.optimizer.lr == 0.0001
    assert math.isclose(config.train.optimizer.eps, 1e-6)


@pytest.mark.parametrize(
    ("assignment", "names"),
    [
        ("train.optimizer.lr=1e-4x", "train.optimizer.lr"),
        ("train.optimizer.lr=on", "train.optimizer.lr"),
        ("train.optimizer.lr=true", "train.optimizer.lr"),
        ("train.optimizer.lr=.nan", "train.optimizer.lr"),
        ("model.hidden_size=true", "model.hidden_size"),
        ("model.hidden_size=1.5", "model.hidden_size"),
        ("model.hidden_size=-1", "model.hidden_size"),
        ("masking.rate=0", "masking.rate"),
        ("pairs.random_share=1.1", "pairs.random_share"),
        ("train.phases=[]", "train.phases"),
        ("train.phases.0.steps=x", "train.phases.0.steps"),
        ("train=3", "train"),
        ("corpus.sources=[3]", "corpus.sources.0"),
        ("name=a/b", "name"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_key(minimal: Path, assignment: str, names: str) -> None:
    (fault,) = faults(minimal, assignment)
    assert f" {names}: " in fault


@pytest.mark.parametrize(
    ("assignment", "meant"),
    [
        ("modle.hidden_size=8", "model"),
        ("model.hiden_size=8", "hidden_size"),
        ("train.optimizer.weight_decy=0", "weight_decay"),
        ("train.phases.0.batchsize=8", "batch_size"),
        ("tokenizer.form=x", "from"),
        ("corpus.sources=[{kind: files, pth: x, path: y}]", "path"),
        ("corpus.sources=[{kind: fiels, path: y}]", "files"),
        ("train.precision=b16", "bf16"),
        ("pairs.rule=nxt", "next"),
    ],
)
def test_a_misspelt_key_or_choice_is_refused_with_the_nearest_name(minimal: Path, assignment: str, meant: str) -> None:
    (fault,) = faults(minimal, assignment)
    assert f"did you mean {meant}?" in fault


def test_a_key_like_no_other_is_refused_with_those_known_there(minimal: Path) -> None:
    (fault,) = faults(minimal, "masking.zzz=1")
    assert "rate, mask_share, random_share, unit" in fault


IMPOSSIBLE = {
    "model.num_attention_heads=7": "model.num_attention_heads: 7 does not divide",
    "model.type_vocab_size=1": "pairs.rule=none",
    "train.phases.0.length=513": "set 512 or less",
    "train.schedule.warmup_steps=100": "below the 100 steps of all phases; 10 would be a tenth",
    "train.phases.0.accumulate=3": "does not divide train.phases.0.batch_size 256; the nearest that does is 2",
    "train.phases.0.accumulate=Auto": "a number from 1 on, or auto, is expected, not 'Auto'",
    "train.phases.0.ramp={batch_size: 60, steps: 5}": "no divisor below train.phases.0.batch_size 256; the nearest is",
    "train.phases.0.ramp={batch_size: 256, steps: 5}": "the nearest is 128",
    "train.phases=[{steps: 1, batch_size: 4, ramp: {batch_size: 2, steps: 1}}]": "steps 1; leave ramp out",
    "train.phases=[{steps: 6, batch_size: 4, ramp: {batch_size: 2, steps: 8}}]": "below train.phases.0.steps 6; set 3",
    "train.phases.0.ramp={batch_size: 64, steps: 100}": "must be below train.phases.0.steps 100; 10 would be a tenth",
    "train.schedule={over: tokens, warmup_steps: 3}": "with train.schedule.over the warm-up is a share of the tokens",
    "train.budget=5": "a time such as 3h50m, 90m or 2d12h is expected, not 5",
    "train.budget=-1h": "a time such as 3h50m, 90m or 2d12h is expected, not '-1h'",
    "masking.random_share=0.5": "is above 1",
    "masking.max_ngram=5": "has no effect with masking.unit: token; set masking.unit=ngram",
    "corpus.sources=[{kind: docstrings, weight: 2}, {kind: files, path: x}]": "corpus.sources.1.weight: is required",
    "corpus.sources=[{kind: docstrings, max_repeats: 2}]": "no effect without weights",
    "corpus.heldout.min_documents=3000": "corpus.heldout.max_documents: 2000 is below",
    "corpus.sources=[{kind: files, path: x, documents: group}]": "corpus.sources.0.group_column: is required",
    "corpus.sources=[{kind: hub, dataset: x, documents: heading}]": "corpus.sources.0.heading: is required",
    "corpus.sources=[{kind: files, path: x, heading: '('}]": "is not a regular expression",
    "corpus.sources=[{kind: wikidump}]": "either path or url",
    "corpus.sources=[{kind: wikidump, path: x, url: y}]": "either path or url",
    "corpus.sources=[{kind: wikidump, url: y}]": "sha256: is required",
    "corpus.sources=[{kind: docstrings, name: a}, {kind: docstrings, name: a}]": "names another source too",
    f"corpus.sources=[{', '.join(['{kind: docstrings}'] * 257)}]": "at most 256",
}


@pytest.mark.parametrize(("assignment", "says"), IMPOSSIBLE.items())
def test_an_impossible_combination_is_refused_with_what_to_set(minimal: Path, assignment: str, says: str) -> None:
    (fault,) = faults(minimal, assignment)
    assert says in fault


def test_the_number_of_heads_that_is_offered_divides_the_width(minimal: Path) -> None:
    (fault,) = faults(minimal, "model.hidden_size=100", "model.num_attention_heads=12")
    heads = int(fault.split()[-1])
    assert 100 % heads == 0
    load_config(minimal, ["model.hidden_size=100", f"model.num_attention_heads={heads}"])


def test_all_faults_are_told_together(write: Any) -> None:
    path = write("""
seed: 1
corpus:
  sources: [{kind: files, path: x, documents: group}, {kind: hub}]
model: {hidden_size: 768, num_attention_heads: 7, hidden_siez: 3}
masking: {rate: lots, mask_share: 0.9, random_share: 0.2}
train:
  phases: [{length: 1024, steps: 10, batch_size: 10, accumulate: 3}]
  schedule: {warmup_steps: 10}
  precision: fp23
""")
    told = faults(path)
    assert [re.sub("^mine.yaml: ", "", fault).split(":")[0] for fault in told] == [
        "corpus.sources.1.dataset",
        "masking.rate",
        "model.hidden_siez",
        "train.precision",
        "seed",
        "train.phases.0.length",
        "train.phases.0.accumulate",
        "train.schedule.warmup_steps",
        "masking.mask_share + masking.random_share",
    ]


def test_a_faulty_value_causes_no_second_fault_by_its_default(minimal: Path) -> None:
    # 7 does not divide the default width, but the width is what is to be mended.
    assert len(faults(minimal, "model.hidden_size=abc", "model.num_attention_heads=7")) == 1
    assert len(faults(minimal, "model.hidden_siz=70", "model.num_attention_heads=7")) == 1
    assert len(faults(minimal, "train.phases.0.steps=none", "train.schedule.warmup_steps=5000")) == 1


def test_a_long_faulty_value_does_not_fill_the_screen(minimal: Path) -> None:
    (fault,) = faults(minimal, f"train.precision={'x' * 5000}")
    assert len(fault) < 300


# --- extends ------------------------------------------------------------------------------------------------------


def test_extends_a_chain_of_files_beside_each_other(write: Any) -> None:
    write(MINIMAL + "  optimizer: {lr: 1.0, eps: 0.5}\ndescription: the oldest\n", "deep/a.yaml")
    write("extends: a.yaml\ntrain: {optimizer: {lr: 2.0}, seed: 3}\n", "deep/b.yaml")
    config = load_config(write("extends: deep/b.yaml\ntrain: {seed: 4}\n"))
    assert (config.train.optimizer.lr, config.train.optimizer.eps, config.train.seed) == (2.0, 0.5, 4)
    # What is said about one file is not said about those that extend it.
    assert (config.name, config.description) == ("mine", "")


def test_extends_several_files_the_later_ones_win(write: Any) -> None:
    write(MINIMAL + "  seed: 1\n  workers: 1\n", "a.yaml")
    write("train: {seed: 2}\n", "b.yaml")
    config = load_config(write("extends: [a.yaml, b.yaml]\n"))
    assert (config.train.seed, config.train.workers) == (2, 1)


def test_extends_a_shipped_config_and_a_shipped_corpus(write: Any) -> None:
    config = load_config(write("extends: [tiny, corpora/wikipedia]\n"))
    assert config.model.hidden_size == 128
    assert config.corpus.folder == "wikipedia-20231101.en"


def test_extends_in_a_circle_is_refused(write: Any) -> None:
    write("extends: mine.yaml\n", "a.yaml")
    (fault,) = faults(write("extends: a.yaml\n"))
    assert "mine.yaml -> a.yaml -> mine.yaml" in fault


@pytest.mark.parametrize("value", ["3", "null", "[base, 3]", "{a: b}", "nowhere.yaml"])
def test_extends_of_something_else_is_refused(write: Any, value: str) -> None:
    (fault,) = faults(write(f"extends: {value}\n"))
    assert "extends:" in fault


def test_an_unknown_config_offers_the_nearest_shipped_one() -> None:
    (fault,) = faults("bsae.yaml")
    assert "did you mean base?" in fault
    assert "tiny" in fault


@pytest.mark.parametrize("name", ["base", "base.yaml"])
def test_a_shipped_config_is_found_by_name_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(name) == shipped_configs()["base"]
    own = tmp_path / "base.yaml"
    own.write_text(MINIMAL, encoding="utf-8")
    assert find_config("base.yaml").resolve() == own


# --- overrides ----------------------------------------------------------------------------------------------------


def test_set_changes_numbers_words_lists_and_items_of_lists(minimal: Path) -> None:
    config = load_config(
        minimal,
        [
            "train.optimizer.lr=3e-4",
            "train.optimizer.betas=[0.8, 0.9]",
            "train.phases=[{steps: 5}, {steps: 6, length: 512}]",
            "train.phases.1.steps=7",
            "corpus.sources.0.name=docs",
            "masking={rate: 0.3}",
        ],
    )
    assert config.train.optimizer.lr == 3e-4
    assert config.train.optimizer.betas == (0.8, 0.9)
    assert [(phase.steps, phase.length) for phase in config.train.phases] == [(5, 128), (7, 512)]
    assert config.corpus.sources[0].name == "docs"
    assert (config.masking.rate, config.masking.mask_share) == (0.3, 0.8)


def test_set_of_a_part_leaves_its_neighbours(minimal: Path) -> None:
    before, after = load_config(minimal), load_config(minimal, ["train.phases.0.length=64"])
    assert after.train.phases[0].steps == before.train.phases[0].steps == 100
    assert after.model == before.model


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("train.seed", "section.key=value is expected"),
        ("=3", "section.key=value is expected"),
        ("train.phases.1.steps=3", "train.phases has items 0 to 0"),
        ("train.phases.first.steps=3", "train.phases has items 0 to 0"),
        ("train.phases.-1.steps=3", "train.phases has items 0 to 0"),
        ("corpus.fallback.0.name=x", "corpus.fallback"),
        ("train.seed=[1", "--set train.seed"),
        ("train.seed.x=1", "train.seed"),
    ],
)
def test_set_of_something_that_is_not_there_is_refused(minimal: Path, assignment: str, says: str) -> None:
    (fault,) = faults(minimal, assignment)
    assert says in fault


@pytest.mark.parametrize(
    ("overrides", "origin"),
    [
        (["train.seed=1", "train.sede=1"], "--set train.sede=1: train.sede: unknown key"),
        (["train.seed=x"], "--set train.seed=x: train.seed: "),
        (["train.seed=x", "train.seed=y"], "--set train.seed=y: train.seed: "),
        (["masking={rate: 2}"], "--set masking={rate: 2}: masking.rate: "),
        (["train.phases=3"], "--set train.phases=3: train.phases: "),
        (["model.hidden_size=100"], "--set model.hidden_size=100: model.num_attention_heads: "),
        (["description=" + "x" * 200, "name=" + "a/" * 60], "--set name=" + "a/" * 36 + "...: name: "),
    ],
)
def test_a_fault_of_set_is_laid_to_it_and_not_to_the_file(minimal: Path, overrides: list[str], origin: str) -> None:
    (fault,) = faults(minimal, *overrides)
    assert fault.startswith(origin)


def test_a_fault_of_the_file_stays_there_beside_other_settings(tmp_path: Path, minimal: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(minimal.read_text(encoding="utf-8") + "tokenizer: {vocab_sise: 9}\n", encoding="utf-8")
    (fault,) = faults(broken, "tokenizer.lowercase=false", "train.seed=1")
    assert fault.startswith("broken.yaml: tokenizer.vocab_sise: ")


def test_places_of_data_and_runs_win_over_the_file(minimal: Path) -> None:
    config = load_config(minimal, data_dir=Path("elsewhere"), runs_dir=None)
    assert (config.data_dir, config.runs_dir) == ("elsewhere", "runs")


# --- the name of a corpus -----------------------------------------------------------------------------------------


def test_other_sources_do_not_inherit_the_name_and_fallback_of_those_replaced(write: Any) -> None:
    assert load_config("demo").corpus.folder == "demo"
    sources = "corpus.sources=[{kind: files, path: /texts/my speeches/}]"
    for config in (
        load_config("demo", [sources]),
        load_config(write("extends: demo\ncorpus: {sources: [{kind: files, path: /texts/my speeches}]}\n")),
    ):
        assert config.corpus.folder == "my-speeches"
        assert config.corpus.fallback == []
        assert config.corpus.min_sentences == load_config("demo").corpus.min_sentences


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_that_is_set_beside_other_sources_holds_in_any_order(order: int) -> None:
    overrides = ["corpus.name=mine", "corpus.sources=[{kind: files, path: x}]"][::order]
    assert load_config("demo", overrides).corpus.folder == "mine"


def test_a_change_inside_a_source_keeps_name_and_fallback() -> None:
    config = load_config("demo", ["corpus.sources.0.size=1 MB"])
    assert config.corpus.folder == "demo"
    assert config.corpus.fallback


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("{kind: docstrings}", "docstrings"),
        ("{kind: docstrings, name: a b}", "a-b"),
        ("{kind: files, path: ../some/where.txt}", "where"),
        ("{kind: files, path: ..}", "corpus"),
        ("{kind: hub, dataset: wikimedia/wikipedia, config: 20231101.de}", "wikipedia-20231101.de"),
        ("{kind: hub, dataset: Salesforce/wikitext, config: wikitext-2-raw-v1}", "wikitext-2-raw-v1"),
        ("{kind: hub, dataset: a/b}", "b"),
        ("{kind: wikidump, path: d/dewiki.xml.bz2}", "dewiki.xml"),
    ],
)
def test_a_corpus_without_a_name_is_named_by_its_first_source(minimal: Path, source: str, folder: str) -> None:
    assert load_config(minimal, [f"corpus.sources=[{source}]"]).corpus.folder == folder


# --- shipped ------------------------------------------------------------------------------------------------------

EXPECTED = {
    "demo": None,
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
    "base-2018": (12, 768),
}


def test_the_promised_configs_are_shipped_in_their_sizes() -> None:
    assert EXPECTED.keys() <= shipped_configs().keys()
    for name, shape in EXPECTED.items():
        model = load_config(name).model
        assert shape in (None, (model.num_hidden_layers, model.hidden_size))
        assert model.hidden_size // model.num_attention_heads == 64


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_config_states_its_purpose_hardware_cost_and_source(name: str) -> None:
    config = load_config(name)
    assert config.name == name
    purpose, *rest = config.description.splitlines()
    assert 30 <= len(purpose) <= 100
    assert purpose.endswith(".")
    for part in ("Hardware: ", "Cost: ", "Source: "):
        assert sum(line.startswith(part) for line in rest) == 1
    for source in config.corpus.sources:
        assert source.kind != "hub" or source.size


@pytest.mark.parametrize("name", shipped_configs())
def test_the_resolved_config_loads_to_the_same_config(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    path = tmp_path / "other.yaml"
    path.write_text(as_yaml(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize("name", shipped_corpora())
def test_a_shipped_corpus_fits_any_recipe_and_says_what_it_is(name: str, write: Any) -> None:
    config = load_config(write(f"extends: [tiny, {name}]\n"))
    assert len(config.corpus.sources) == 1
    comment = shipped_corpora()[name].read_text(encoding="utf-8").partition("\ncorpus:")[0]
    for part in ("Documents: ", "etokenisation: ", "Size"):
        assert part in comment


def test_headings_of_wikitext_begin_articles_and_not_sections() -> None:
    source = load_config("tiny").corpus.sources[0]
    assert source.kind == "hub"
    assert source.heading is not None
    heading = re.compile(source.heading)
    for title in (" = Valkyria Chronicles III = \n", "= Robert Boulter =", " = 3 = 4 ( song ) = "):
        assert heading.search(title)
    for other in (" = = Gameplay = = \n", " = = = 2000 – 2005 = = = ", " a = b = c ", "", " \n", " The = sign = "):
        assert not heading.search(other)


def test_the_recipe_of_2018_is_that_of_the_paper() -> None:
    config = load_config("base-2018")
    train = config.train
    assert [(phase.length, phase.steps, phase.batch_size) for phase in train.phases] == [
        (128, 900_000, 256),
        (512, 100_000, 256),
    ]
    assert (train.optimizer.lr, train.schedule.warmup_steps, train.schedule.kind) == (1e-4, 10_000, "linear")
    assert (train.optimizer.betas, train.optimizer.eps, train.optimizer.weight_decay) == ((0.9, 0.999), 1e-6, 0.01)
    assert not train.optimizer.bias_correction
    assert (config.tokenizer.vocab_size, config.masking.rate, config.model.hidden_dropout_prob) == (30522, 0.15, 0.1)


@pytest.mark.parametrize(
    ("name", "gflop_128", "gflop_512"),
    [
        ("tiny", 0.8, 3.8),
        ("mini", 3.6, 16.5),
        ("small", 12.0, 52.4),
        ("medium", 22.0, 97.5),
        ("base", 69.9, 301.0),
        ("large", 240.6, 1020.0),
        ("base-2018", 69.9, 301.0),
    ],
)
def test_the_stated_cost_follows_from_rows_and_flops(name: str, gflop_128: float, gflop_512: float) -> None:
    config = load_config(name)
    stated = re.search(r"Cost: ([0-9.]+) ([PE])FLOP", config.description)
    assert stated
    per_row = {128: gflop_128, 512: gflop_512}
    total = sum(per_row[phase.length] * 1e9 * phase.steps * phase.batch_size for phase in config.train.phases)
    assert float(stated[1]) * {"P": 1e15, "E": 1e18}[stated[2]] == pytest.approx(total, rel=0.02)


# --- configurations from strangers ----------------------------------------------------------------------------------

_BOMB = "a0: &a0 [x,x]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 13))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_BOMB, "aliases written out"),
        ("a: " + "[" * 200 + "]" * 200, "more than 50 levels"),
        ("a: " + "[" * 5000, "more than 50 levels"),
        ("? [a]\n: b\n", "a key must be a word"),
        ("{{a: 1}: b}", "a key must be a word"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ],
)
def test_yaml_that_means_harm_is_one_line_at_once(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        parse_yaml(text, "x.yaml")
    assert len(caught.value.faults) == 1
    assert "\n" not in caught.value.faults[0]


def test_numbers_and_dates_of_old_yaml_are_not_read_as_others() -> None:
    assert parse_yaml("[010, 1:30, 2026-01-01, 0x10, 1_000, -3]", "x") == ["010", "1:30", "2026-01-01", 16, 1000, -3]


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("train.phases.0.batch_size=2147483646", "the nearest that does is 7"),
        ("train.phases.0.batch_size=99999999999999999", "less than 2147483648"),
        ("train.phases.0.steps=9999999999999999999999", "less than 2147483648"),
        ("model.hidden_size=100000000000", "less than 2147483648"),
        ('data_dir="a\\0b"', "text without NUL"),
        ('description="\\uD800"', "text without NUL"),
        ("name=" + "n" * 250, "at most 200 characters"),
        ("corpus.sources=[{kind: files, path: '', heading: a}]", "at least 1 character"),
        (
            f"corpus.sources=[{{kind: files, path: a, heading: '{'(' * 3000 + ')' * 3000}'}}]",
            "not a regular expression",
        ),
    ],
)
def test_values_that_no_machine_can_take_are_refused_at_once(minimal: Path, assignment: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        load_config(minimal, ["train.phases.0.accumulate=8", assignment])
    assert all(len(fault) < 300 for fault in caught.value.faults)


def test_a_folder_or_an_endless_name_in_place_of_a_configuration_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is a folder"):
        load_config(tmp_path)
    with pytest.raises(RequestError, match="no such file"):
        load_config("a" * 5000)

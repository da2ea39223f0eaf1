"""The rules against the measurements that they cite."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import benchmark_programs, drawn_thin, manifest
from support.drawn_geometries import drawn_geometries

from jax_convgrad._src import compat
from jax_convgrad._src.conv import arguments
from jax_convgrad._src.conv.geometry import ConvGeometry
from jax_convgrad._src.dispatch.features import (
    BackwardFeatures,
    ConvFeatures,
    PreparationFeatures,
    ResampleFeatures,
    backward_features,
    conv_features,
    preparation_features,
    resample_features,
)
from jax_convgrad._src.dispatch.rules import (
    BACKENDS,
    PREPARATIONS,
    Features,
    Rule,
    RuleTable,
    at_least,
    at_most,
    between,
    none_of,
)
from jax_convgrad._src.dispatch.tables import TABLES, choose
from jax_convgrad._src.dtypes import FLOAT_DTYPES
from jax_convgrad._src.runtime import registry
from jax_convgrad.bench import problems
from jax_convgrad.bench.case_files import parse_case
from jax_convgrad.bench.cases import DTYPES

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
# Two times that differ by less are the same: runs of one machine do. Within it a rule may prefer what fuses.
TIE = 0.03
# No measurement says these: they name what a backend cannot compute, or cannot compute at every size.
CAPABILITIES = {
    "cuda: wider result",
    "cuda: beyond memory",
    "cuda: symbolic channels",
    "cpu: symbolic channels",
    "cpu: bfloat16 with a symbolic number of channels",
    "cpu: dtypes that oneDNN lacks",
    "cpu: operands in float16",
    "cpu: bfloat16 without AVX-512",
}
# Nor these: nothing has to be done to the operands.
UNPREPARED = {"cpu: operands as they are", "cuda: operands as they are"}
# Rules whose cases are in the surveys' lists, and not in a run that was made yet.
UNMEASURED: set[str] = set()


class Row(NamedTuple):
    table: RuleTable
    rule: Rule
    platform: str

    @property
    def name(self) -> str:
        return f"{self.platform}: {self.rule.name}"


# By the devices that results name.
CLASSES = benchmark_programs.load("gains").CLASSES
ALL_TABLES = [
    (platform, table)
    for platforms in TABLES.values()
    for platform, tables in platforms.items()
    for table in tables
]
ROWS = [Row(table, rule, platform) for platform, table in ALL_TABLES for rule in table.rules]
per_row = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


@functools.cache
def measurements(file: str) -> dict[tuple[str, str], dict[str, Any]]:
    rows = json.loads((BENCHMARKS / file).read_text())["rows"]
    found = {(row["case"], row["pass"]): row for row in rows}
    assert len(found) == len(rows), f"{file} has a case twice"
    return found


def measurement(identifier: str) -> dict[str, Any]:
    file, case, pass_ = identifier.split("#")
    found = measurements(file)
    assert (case, pass_) in found, f"{file} has no {pass_} of {case}"
    return found[case, pass_]


def times(row: dict[str, Any]) -> dict[str, float]:
    names = sorted(BACKENDS | PREPARATIONS)
    return {name: row[name] for name in names if isinstance(row.get(name), int | float)}


def slower_by(row: dict[str, Any], choice: str) -> float:
    """By what part of the fastest choice's time one is slower than it."""
    measured = times(row)
    assert len(measured) > 1, f"nothing to compare: {row['case']} {row['pass']}"
    return measured[choice] / min(measured.values()) - 1


@functools.cache
def features_of(entry: str, pass_: str, platform: str) -> Features:
    layer = json.loads(entry)
    if pass_ == "backward":
        return backward_features_of(layer)
    if "multiplies_bfloat16" in layer:
        return preparation_features_of(layer, pass_)
    precision = layer.pop("precision", None)
    is_thin = None
    if platform == "cpu":
        registry.require("cpu")  # an error where it is required and missing
        module = registry.cpu_module()
        if module is None:
            pytest.skip("no CPU module, which says what is thin")
        is_thin = module.is_thin
    return problems.features_of(problems.problem_of(parse_case(layer), pass_, precision), is_thin)


def backward_features_of(layer: dict[str, Any]) -> BackwardFeatures:
    *image, channels = layer["x"][1:]
    config = arguments.make_config(
        "conv_backward",
        (1, channels, *image),
        (channels, 1, *layer["kernel"]),
        strides=layer["stride"],
        padding=layer["padding"],
        dilation=1,
        groups=channels,
        dimension_numbers=None,
    )
    shapes = (layer["x"][0], channels, *image), (channels, 1, *layer["kernel"])
    geometry = ConvGeometry.make("conv_backward", config, *shapes)
    native = layer["multiplies_bfloat16"]
    return backward_features(tuple(layer["wanted"]), geometry, layer["dtype"], native)


def preparation_features_of(layer: dict[str, Any], pass_: str) -> PreparationFeatures:
    axes = "DHW"[3 - len(layer["kernel"]) :]
    groups, channels = layer["groups"], layer["x"][-1]
    weights = (*layer["kernel"], channels // groups, layer["out_channels"])
    padding = layer["padding"]
    config = arguments.make_config(
        "conv_fprop",
        tuple(layer["x"]),
        weights,
        strides=layer["stride"],
        padding=padding if isinstance(padding, str) else [tuple(pair) for pair in padding],
        dilation=layer.get("dilation", 1),
        groups=groups,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
    )
    geometry = ConvGeometry.make("conv_fprop", config, tuple(layer["x"]), weights)
    operator = {"fprop": "conv_fprop", "dx": "conv_dgrad", "dw": "conv_wgrad"}[pass_]
    dtype = DTYPES[layer["dtype"]]
    precision = compat.canonical_precision(layer["precision"])
    native = layer["multiplies_bfloat16"]
    return preparation_features(operator, geometry, dtype, dtype, precision, True, native)


def features(row: dict[str, Any], platform: str) -> Features:
    return features_of(json.dumps(row["layer"], sort_keys=True), row["pass"], platform)


@per_row
def test_the_backend_is_the_fastest_one_measured_or_ties_with_it(row: Row):
    for identifier in row.rule.evidence:
        found = measurement(identifier)
        assert slower_by(found, row.rule.choice) <= TIE, (identifier, times(found))


@per_row
def test_cases_against_are_those_that_another_backend_is_faster_for(row: Row):
    for identifier in row.rule.against:
        found = measurement(identifier)
        assert slower_by(found, row.rule.choice) > TIE, (identifier, times(found))


@per_row
def test_cited_cases_are_in_the_domain_of_the_rule(row: Row):
    for identifier in (*row.rule.evidence, *row.rule.against):
        found = measurement(identifier)
        if "layer" not in found:  # a whole program, of many layers
            assert identifier.startswith("h100/dense_steps.json#"), identifier
            continue
        chosen = row.table.choose(features(found, row.platform))
        assert chosen is row.rule, f"{identifier} is of the rule {chosen.name!r}"


@per_row
def test_a_rule_names_the_devices_of_its_evidence(row: Row):
    """The class of its own, or the table's; of several that were measured, one."""
    classes = set()
    for file, case, pass_ in (identifier.split("#") for identifier in row.rule.evidence):
        found = measurements(file)[case, pass_]
        text = f"{found.get('device')} {found.get('source')}"
        of_row = {CLASSES[name] for name in CLASSES if name in text}
        classes |= of_row or {class_of(file)}
    assert not classes or (row.rule.device_class or row.table.device_class) in classes


@functools.cache
def class_of(file: str) -> str:
    """Of the device that a whole file of results was measured on, which it or the manifest names."""
    known = json.loads((BENCHMARKS / file).read_text()).get("device_class")
    if known is not None:
        return known
    device = next(entry["device"] for entry in manifest.entries() if file in entry["files"])
    (found,) = {CLASSES[name] for name in CLASSES if name in device}
    return found


@per_row
def test_a_rule_has_evidence_or_is_of_what_a_backend_cannot_do(row: Row):
    without = row.name in CAPABILITIES | UNPREPARED | UNMEASURED
    assert bool(row.rule.evidence) != without
    assert not set(row.rule.evidence) & set(row.rule.against)


def test_the_lists_of_rules_without_evidence_name_rules():
    assert {row.name for row in ROWS} >= CAPABILITIES | UNPREPARED | UNMEASURED


@pytest.mark.parametrize(
    "platform, file",
    [
        ("cuda", "h100/backends.json"),
        ("cuda", "h100/thin.json"),
        ("cuda", "h100/thin_f32.json"),
        ("cuda", "h200/windows.json"),
        ("cpu", "cpu/backends.json"),
        ("cpu", "cpu/float16.json"),
        ("cpu", "cpu/few_pixels.json"),
        ("cpu", "cpu/bfloat16.json"),
        ("cpu", "cpu/multiplier.json"),
        ("cpu", "cpu/backward.json"),
        ("cpu", "cpu/backward_native_bfloat16.json"),
        ("cpu", "cpu/preparations.json"),
        ("cpu", "cpu/preparations_amx.json"),
        ("cuda", "h100/preparations.json"),
        ("cuda", "h200/preparations.json"),
        ("cuda", "h200/highres.json"),
        ("cuda", "h200/highres_f32.json"),
    ],
)
def test_no_measurement_against_a_rule_is_left_out(platform: str, file: str):
    """Where the rule's backend is slower than another by more than a tie, the rule says so."""
    missing = []
    for (case, pass_), row in measurements(file).items():
        if len(times(row)) < 2:
            continue
        found = features(row, platform)
        rule, _ = choose(platform, None, found)
        identifier = f"{file}#{case}#{pass_}"
        if slower_by(row, rule.choice) > TIE and identifier not in rule.against:
            missing.append((rule.name, identifier, times(row)))
    assert not missing, "\n".join(map(str, missing))


@per_row
def test_reasons_are_one_sentence_without_figures(row: Row):
    reason = row.rule.reason
    numbers = [word for word in reason.replace(",", " ").split() if word[0].isdigit()]
    assert all(word in ("2-D", "3-D", "16") for word in numbers), numbers
    assert ". " not in reason and not reason.endswith(".")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_matrix_product_is_of_windows_that_cover_the_image(platform: str):
    """`emit_gemm` computes no other problem."""
    made = [
        (operator, geometry, dtype)
        for geometry in drawn_geometries(6, 1500)
        for operator in ("conv_fprop", "conv_dgrad", "conv_wgrad")
        for dtype in ("float32", "bfloat16")
    ]
    calls = [drawn_thin.draw(np.random.default_rng(seed)) for seed in range(1500)]
    made += [(p.operator, p.geometry, p.dtype) for p in map(drawn_thin.problem_of, calls)]
    products = 0
    for operator, geometry, dtype in made:
        if (
            choose(platform, None, conv_features(operator, geometry, dtype, dtype))[0].choice
            == "gemm"
        ):
            assert geometry.has_nonoverlapping_windows, (operator, geometry, dtype)
            products += 1
    assert products > 10


@pytest.mark.parametrize("device_class", ["amx", "avx512", "avx2"])
@pytest.mark.parametrize(
    ("channels", "kernel", "groups"),
    [((32, 12), (4, 7, 5), 4), ((32, 32), (3, 3, 3), 4), ((16, 16), (3, 3, 3), 2)],
)
def test_grouped_weight_gradients_in_float16_have_a_handler(
    device_class: str, channels: tuple[int, int], kernel: tuple[int, ...], groups: int
):
    """XLA:CPU is up to thirty times slower on them than in float32."""
    inputs, outputs = channels
    config = arguments.make_config(
        "test",
        (1, inputs, 10, 16, 16),
        (outputs, inputs // groups, *kernel),
        strides=1,
        padding="SAME",
        dilation=1,
        groups=groups,
        dimension_numbers=None,
    )
    shapes = (1, inputs, 10, 16, 16), (outputs, inputs // groups, *kernel)
    geometry = ConvGeometry.make("test", config, *shapes)
    found = conv_features("conv_wgrad", geometry, "float16", "float16")
    assert choose("cpu", device_class, found)[0].choice == "onednn"


def test_every_rule_is_reached():
    """By a cited case, or by one of some drawn problems: none is hidden behind those in front of it."""
    reached = set()
    module = registry.cpu_module()
    is_thin = None if module is None else module.is_thin
    for geometry in drawn_geometries(4, 3000):
        for operator in ("conv_fprop", "conv_dgrad", "conv_wgrad"):
            for dtype, tf32 in itertools.product(FLOAT_DTYPES, (True, False)):
                precision = None if tf32 else "highest"
                found = conv_features(operator, geometry, dtype, dtype, precision, is_thin)
                prepared = [
                    preparation_features(operator, geometry, dtype, dtype, precision, *bfloat16)
                    for bfloat16 in ((True, True), (True, False), (False, False))
                ]
                for platform, each in itertools.product(("cpu", "cuda"), (found, *prepared)):
                    reached.add((platform, choose(platform, None, each)[0].name))
    geometry = next(iter(drawn_geometries(5, 1)))
    for platform in ("cpu", "cuda"):
        wider = conv_features("conv_fprop", geometry, "bfloat16", "float32")
        reached.add((platform, choose(platform, None, wider)[0].name))
    for dtype, copies, grows in itertools.product(FLOAT_DTYPES, (False, True), (False, True)):
        for platform in ("cpu", "cuda"):
            rule, _ = choose(platform, None, resample_features(dtype, copies, grows))
            reached.add((platform, rule.name))
    for row in ROWS:
        for identifier in row.rule.evidence:
            found = measurement(identifier)
            if "layer" in found:
                chosen = row.table.choose(features(found, row.platform))
                reached.add((row.platform, chosen.name))
    # Symbolic sizes are drawn nowhere: test_features.py has them.
    missing = {(r.platform, r.rule.name) for r in ROWS} - reached
    assert missing == {
        ("cpu", "symbolic channels"),
        ("cuda", "symbolic channels"),
        ("cpu", "bfloat16 with a symbolic number of channels"),
    }


def test_every_feature_is_read_by_a_rule():
    for kind in (ConvFeatures, BackwardFeatures, PreparationFeatures, ResampleFeatures):
        read = {
            name
            for tables in TABLES[kind].values()
            for table in tables
            for rule in table.rules
            for every in rule.alternatives
            for name in every
        }
        assert read == set(kind.__dataclass_fields__)


def test_symbolic_channels_go_to_the_handlers():
    import jax
    from support.drawn_geometries import channels_last

    from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry

    (channels,) = jax.export.symbolic_shape("c")
    config = ConvConfig((1, 1), ((0, 0), (0, 0)), (1, 1), 1, channels_last(2))
    geometry = ConvGeometry.make("t", config, (2, 8, 8, channels), (3, 3, channels, 16))
    found = conv_features("conv_wgrad", geometry, "float32", "float32")
    for platform, backend in (("cpu", "onednn"), ("cuda", "cudnn")):
        rule, _ = choose(platform, None, found)
        assert (rule.name, rule.choice) == ("symbolic channels", backend)


def test_a_device_class_without_a_table_takes_the_platforms_first():
    found = resample_features("float32", copies=True, grows=True)
    assert choose("cuda", "sm_90", found)[1] == "sm_90"
    assert choose("cuda", "sm_120", found)[1] == "sm_90"
    assert choose("cpu", "avx2", found)[1] == "amx"
    with pytest.raises(KeyError):
        choose("tpu", None, found)


def resample_rule(name: str = "all", when: Any = None, choice: str = "xla") -> Rule:
    return Rule(name, {} if when is None else when, choice, "a reason", ())


def test_the_first_rule_that_holds_is_chosen():
    rules = (
        resample_rule("copies", ({"copies": True, "grows": True}, {"dtype": {"float64"}})),
        resample_rule(),
    )
    table = RuleTable("sm_90", ResampleFeatures, rules)
    assert table.choose(resample_features("float32", True, True)) is rules[0]
    assert table.choose(resample_features("float64", False, False)) is rules[0]
    assert table.choose(resample_features("float32", True, False)) is rules[1]


@pytest.mark.parametrize(
    "when, text",
    [
        ({"copy": True}, "there is no feature 'copy'"),
        ({"copies": 1}, "copies = 1 is not a condition"),
        ({"dtype": at_least(3)}, "is not a condition"),
        ({"dtype": {"float32", 64}}, "is not a condition"),
        ({"dtype": set()}, "is not a condition"),
        ({"grows": none_of("float32")}, "is not a condition"),
    ],
)
def test_a_condition_that_cannot_be_is_an_error(when: Any, text: str):
    with pytest.raises(ValueError, match=text):
        RuleTable("sm_90", ResampleFeatures, (resample_rule("first", when), resample_rule()))


def test_tables_end_in_a_catch_all_and_have_no_name_twice():
    last = resample_rule("last", {"copies": True})
    for rules in ((last,), (resample_rule(), last), (resample_rule("a"), resample_rule("b"))):
        with pytest.raises(ValueError, match="the last rule, and no other"):
            RuleTable("sm_90", ResampleFeatures, rules)
    with pytest.raises(ValueError, match="one name"):
        RuleTable(
            "sm_90", ResampleFeatures, (resample_rule("all", {"copies": True}), resample_rule())
        )
    for choice in ("matmul", "zero_channel"):
        with pytest.raises(ValueError, match="is not a backend"):
            RuleTable("sm_90", ResampleFeatures, (resample_rule(choice=choice),))
    with pytest.raises(ValueError, match="is not a preparation"):
        RuleTable("sm_90", PreparationFeatures, (resample_rule(choice="xla"),))


def test_conditions_on_sizes():
    assert 3 in at_least(3) and 2 not in at_least(3)
    assert 3 in at_most(3) and 4 not in at_most(3)
    assert [n for n in range(6) if n in between(2, 4)] == [2, 3, 4]
    for condition in (at_least(0), at_most(9), between(0, 9)):
        assert None not in condition  # a symbolic size
    assert "float16" in none_of("float32") and "float32" not in none_of("float32")

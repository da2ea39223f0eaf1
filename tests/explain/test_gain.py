"""The gain that explain() expects: from problems that are alike to XLA too, near enough, or not at all."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.meshes import make_mesh, need_devices

import jax_convgrad
from jax_convgrad import ExplanationRow, explain
from jax_convgrad._src.dispatch import devices, rules_cpu
from jax_convgrad._src.explain import gain, table
from jax_convgrad._src.explain.gain import Measurement, Table
from jax_convgrad._src.explain.similar import Sketch
from jax_convgrad._src.runtime import registry

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
import gains

pytestmark = pytest.mark.usefixtures("uninstalled", "without_x64")

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's measurements")
NUMBERS = ("NHWC", "HWIO", "NHWC")


@pytest.fixture
def on_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of devices that the rules of CPUs were measured on."""
    if registry.require("cpu").reason is not None:
        pytest.skip("asks for the handlers' gains")
    monkeypatch.setattr(devices, "_cpu_class", lambda: rules_cpu.AMX.device_class)


# The file.


@pytest.fixture(scope="module")
def made() -> tuple[Any, ...]:
    if registry.find("cpu").reason is not None:
        pytest.skip("asks the CPU module which problems are thin")
    return gains.table()


WRITE = "run: python benchmarks/gains.py --write"


def test_the_table_is_what_the_measurements_give(made: tuple[Any, ...]):
    written, found, predicted = made
    assert gain.FILE.read_text() == gains.as_json(written), WRITE
    assert gains.written_in(gains.NOTES) == gains.report(written, found, predicted), WRITE
    assert gains.written_in(gains.PAGE) == gains.short_report(written, found, predicted), WRITE


def test_what_is_read_is_what_was_written(made: tuple[Any, ...]):
    written = made[0]
    read = gain.shipped()
    assert read.spread == written.spread
    assert {key: set(rows) for key, rows in read.kinds.items()} == {
        key: set(rows) for key, rows in written.kinds.items()
    }
    fewer = dataclasses.replace(written, kinds=dict(list(written.kinds.items())[1:]))
    assert gains.as_json(fewer) != gain.FILE.read_text()


def test_every_measurement_is_a_committed_one():
    """FILE#CASE#PASS names a result whose times have the table's ratio."""
    seconds: dict[str, dict[str, float]] = {}
    for file in gains.BENCH:
        for result in gains.json.loads((gains.HERE / file).read_text())["results"]:
            label = gains.parse_case(result["case"]).label
            times = seconds.setdefault(f"{file}#{label}#{result['pass']}", {})
            times[result["form"]] = result["median_s"]
    checked = 0
    for rows in gain.shipped().kinds.values():
        for row in rows:
            times = seconds.get(row.evidence, {})
            if times and row.seconds is not None:
                assert row.gain == pytest.approx(times["lax"] / times["ours"], rel=1e-3)
                checked += 1
    assert checked > 500


def test_a_kind_that_does_not_predict_itself_is_not_shown(made: tuple[Any, ...]):
    written, _, predicted = made
    factors: dict[Any, list[float]] = {}
    for prediction in predicted:
        factors.setdefault(prediction.key, []).append(prediction.factor)
    good = {key for key, f in factors.items() if len(f) >= 3 and np.median(f) <= 2}
    assert written.spread.keys() == good
    for key, spread in written.spread.items():
        assert np.mean(np.array(factors[key]) <= 1.05 * spread) >= 0.8  # it has two digits
        assert np.mean(np.array(factors[key]) < 0.95 * spread) < 0.8
    assert {
        key for key, f in factors.items() if np.median(f) > 2
    }  # so that there is something to leave out


def test_no_layer_is_predicted_from_itself(made: tuple[Any, ...]):
    """A layer that nothing else is like is not predicted, in however many files it was measured."""
    found = made[1]
    (entry, *_) = (e for e in found if e.measurement.backend is not None)
    twice = [entry, dataclasses.replace(entry, measurement=_renamed(entry.measurement))]
    assert gains.predictions(twice) == []
    other = dataclasses.replace(twice[1], layer="another")
    assert gains.predictions([entry, other]) == []  # of the same sizes
    sizes = (entry.measurement.sizes[0] + 1, *entry.measurement.sizes[1:])
    near = dataclasses.replace(other.measurement, sizes=sizes)
    assert len(gains.predictions([entry, dataclasses.replace(other, measurement=near)])) == 2


def _renamed(measurement: Measurement) -> Measurement:
    return dataclasses.replace(measurement, evidence="another/file.json#case#dx")


# Expectations from a small table.

KIND = "conv_fprop float32 2-D dense; plain"
SKETCH = Sketch(KIND, (3.0, 10.0), 1000)


def measurement(name: str, sizes: tuple[float, ...], ratio: float, **changes: Any) -> Measurement:
    made = Measurement(name, "amx", sizes, 1000, ratio, "onednn", 1.0)
    return dataclasses.replace(made, **changes)


def small(*rows: Measurement, spread: float | None = 1.5) -> Table:
    keys = [("cpu", KIND, "onednn", together) for together in (False, True)]
    return Table({("cpu", KIND): rows}, {} if spread is None else dict.fromkeys(keys, spread))


def expected(table: Table, **changes: Any) -> gain.Expectation | None:
    arguments = {
        "platform": "cpu",
        "device_class": "amx",
        "sketch": SKETCH,
        "backend": "onednn",
    }
    return gain.expected_gain(table, **(arguments | changes))


def test_the_nearest_three_by_nearness():
    rows = [measurement(f"{i}", (3.0, 10.0 + i), 2.0**i) for i in (1, 2, 3, 4)]
    found = expected(small(*rows))
    weights = [1 / (0.5 + i) for i in (1, 2, 3)]
    mean = sum(w * i for w, i in zip(weights, (1, 2, 3), strict=True)) / sum(weights)
    assert found is not None and found.evidence == ("1", "2", "3")
    assert (found.gain, found.spread) == (pytest.approx(2**mean), 1.5)


def test_a_measured_problem_is_its_own_evidence():
    same, near = measurement("same", (3.0, 10.0), 2.0), measurement("near", (3.0, 10.5), 9.0)
    found = expected(small(near, same))
    assert found is not None and (found.gain, found.spread, found.evidence) == (2.0, 1.0, ("same",))
    # Of a kind that is not predictable as well, where no other is.
    found = expected(small(near, same, spread=None))
    assert found is not None and (found.gain, found.spread) == (2.0, 1.0)
    assert expected(small(near, spread=None)) is None


def test_what_is_too_far_says_nothing():
    assert expected(small(measurement("", (3.0, 10.0 + gain.LIMIT), 2.0))) is not None
    assert expected(small(measurement("", (2.9, 10.0 + gain.LIMIT), 2.0))) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"sketch": dataclasses.replace(SKETCH, kind=f"{KIND}, dilated input")},
        {"platform": "cuda"},
        {"backend": "gemm"},
        {"device_class": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_differs_says_nothing(changes: dict[str, Any]):
    found = small(measurement("", (3.0, 10.0), 2.0))
    assert expected(found) is not None
    assert expected(found, **changes) is None


def test_another_class_of_devices_is_further_away():
    there = measurement("there", (3.0, 11.0), 8.0, device_class="avx512")
    here = measurement("here", (3.0, 12.5), 2.0)
    found = expected(small(there, here))
    assert found is not None and found.evidence == ("here", "there")
    assert found.measured_on == ("amx", "avx512")
    found = expected(small(there))
    assert found is not None and (found.gain, found.measured_on) == (pytest.approx(8), ("avx512",))


def test_what_was_measured_alone_comes_before_gradients_together():
    alone = measurement("alone", (3.0, 15.0), 2.0)
    both = measurement("both", (3.0, 10.0), 8.0, together=True)
    found = expected(small(both, alone))
    assert found is not None and found.evidence == ("alone",)
    found = expected(small(both))
    assert found is not None and found.gain == pytest.approx(8)


def test_xla_s_time_grows_with_the_work():
    row = measurement("", (3.0, 10.0), 5.0, backend=None, seconds=None)
    twice = dataclasses.replace(SKETCH, work=2000)
    assert gain.expected_xla_seconds(small(row), "cpu", "amx", twice) == pytest.approx(10)
    assert gain.expected_xla_seconds(small(row), "cpu", None, twice) is None
    assert expected(small(row)) is None


# Rows.


def strided(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 2), [(1, 1)] * 2, dimension_numbers=NUMBERS)


def transposed(x: Any, w: Any) -> Any:
    return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NUMBERS)


def dw(layer: Callable[..., Any], x: tuple[int, ...], w: tuple[int, ...]) -> ExplanationRow:
    """The row of a layer's weight gradient."""
    arrays = jnp.ones(x), jnp.ones(w)
    rows = explain(jax.grad(lambda x, w: jnp.sum(layer(x, w) ** 2), 1), *arrays).rows
    (row,) = (row for row in rows if row.operator == "conv_wgrad")
    return row


@on_cpu
def test_a_transposed_layer_s_weight_gradient_is_not_a_strided_convolution_s(on_amx: None):
    """One operator and one geometry of this package, and two programs of XLA's."""
    up = dw(transposed, (8, 32, 32, 128), (4, 4, 128, 64))
    down = dw(strided, (8, 64, 64, 64), (4, 4, 64, 128))
    assert up.sizes == down.sizes == "8x64x64, 64 to 128, k4 s2 p1"
    assert up.gain is not None and down.gain is not None
    assert up.gain > 50 and 1 < down.gain < 10
    assert not {*up.gain_evidence} & {*down.gain_evidence}
    assert all(e.split("#")[1].startswith("convt") for e in up.gain_evidence)
    assert not any("convt" in e for e in down.gain_evidence)


@on_cpu
def test_a_measured_layer_is_expected_to_gain_what_it_gained(on_amx: None):
    """8x32x32, 128 to 64, k4 s2 in cpu/bench.json."""
    row = dw(transposed, (8, 32, 32, 128), (4, 4, 128, 64))
    (evidence,) = row.gain_evidence
    assert evidence.startswith("cpu/bench.json#convt convt4x4_s2") and evidence.endswith("#dw")
    times = {
        r["form"]: r["median_s"]
        for r in gains.json.loads((gains.HERE / "cpu/bench.json").read_text())["results"]
        if r["case"]["name"] == "convt4x4_s2" and r["pass"] == "dw"
    }
    assert row.gain == pytest.approx(times["lax"] / times["ours"], rel=1e-3)
    assert row.expected_xla_seconds == pytest.approx(times["lax"], rel=1e-3)
    assert row.gain_measured_on == ("amx",)


@on_cpu
def test_this_package_s_layer_is_held_against_its_own_lax_form(on_amx: None):
    """XLA would be given a plain weight gradient there: the gain is a strided convolution's."""
    shapes = (8, 32, 32, 128), (4, 4, 128, 64)
    own = dw(lambda x, w: jax_convgrad.conv_transpose(x, w, (2, 2), "SAME"), *shapes)
    theirs = dw(transposed, *shapes)
    assert own.sizes == theirs.sizes and own.gain is not None and theirs.gain is not None
    assert own.gain < theirs.gain / 10


@on_cpu
@pytest.mark.parametrize("device_class", [None, "avx2"])
def test_a_device_that_was_not_measured(
    on_amx: None, monkeypatch: pytest.MonkeyPatch, device_class: str | None
):
    """Of an unknown device nothing is expected; of a known one what others of its platform gained."""
    monkeypatch.setattr(devices, "_cpu_class", lambda: device_class)
    x, w = jnp.ones((8, 32, 32, 128)), jnp.ones((4, 4, 128, 64))
    found = explain(transposed, x, w)
    (row,) = found.rows
    header, line = str(found).splitlines()[3:5]
    cell = line[header.index("  gain ") + 2 :].split()[0]
    if device_class is None:
        assert (row.gain, row.gain_evidence, row.expected_xla_seconds) == (None, (), None)
        assert cell == "-" and "expected gain over XLA: unknown" in str(found)
        assert found.gain is None and found.gain_rows == (0, 1)
    else:
        assert row.gain is not None and cell == f"{row.gain:.1f}x"
        assert "(on amx, avx512)" in str(found)


def test_what_xla_keeps_gains_nothing():
    """int32 stays with JAX, and so does a convolution that is no operator of the family."""
    x, w = jnp.ones((1, 8, 8, 4), jnp.int32), jnp.ones((3, 3, 4, 4), jnp.int32)
    (row,) = explain(strided, x, w).rows
    assert (row.ours, row.gain, row.gain_evidence) == (False, 1, ())


@on_cpu
def test_channels_first_were_not_measured(on_amx: None):
    x, w = jnp.ones((8, 64, 56, 56)), jnp.ones((64, 64, 3, 3))
    (row,) = explain(lambda x: lax.conv(x, w, (1, 1), "SAME"), x).rows
    assert row.ours and row.gain is None


# The program.


def row_of(seconds: float | None, value: float | None, **changes: Any) -> ExplanationRow:
    (row,) = explain(strided, jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 4))).rows
    return dataclasses.replace(row, gain=value, expected_xla_seconds=seconds, **changes)


def test_the_gain_of_a_program_weighs_rows_by_time():
    rows = [row_of(9.0, 9.0), row_of(1.0, 1.0)]
    assert gain.of_program(rows) == pytest.approx(10 / 2)
    assert gain.rows_known(rows) == (2, 2)
    rows = [row_of(9.0, 9.0), row_of(1.0, 1.0, count=7)]
    assert gain.of_program(rows) == pytest.approx(16 / 8)


def test_rows_that_are_not_known_do_not_count():
    known = row_of(6.0, 3.0)
    others = [row_of(None, 2.0), row_of(1.0, None), row_of(1.0, 1.0, count=None)]
    unused = row_of(5.0, 5.0, used=False)
    assert gain.of_program([known, *others, unused]) == pytest.approx(3)
    assert gain.rows_known([known, *others, unused]) == (1, 4)
    assert gain.of_program(others) is None and gain.of_program([]) is None
    assert (
        headline(known, *others, unused) == "1 of 4 rows together (the others are not known): 3.0x"
    )


def headline(*rows: ExplanationRow, device_class: str | None = "amx") -> str:
    line = table.render("cpu", device_class, False, rows).splitlines()[1]
    return line.removeprefix("expected gain over XLA").lstrip(",: ")


WHOLE = "all rows together (not the whole program): "


def test_what_the_headline_says():
    """The expectation, or why there is none."""
    known, kept = row_of(6.0, 3.0), row_of(None, 1.0)
    assert headline(known) == f"{WHOLE}3.0x"
    assert headline(kept, kept) == f"{WHOLE}1.0x"  # whatever time XLA needs
    assert headline(known, kept) == "1 of 2 rows together (the others are not known): 3.0x"
    assert headline(row_of(6.0, 3.0, used=False)) == "none, nothing depends on these rows"
    assert headline(row_of(None, None), device_class=None) == (
        "unknown, this device is of no known class"
    )
    assert headline(row_of(6.0, 3.0, count=None)) == (
        "unknown, it is not known how often the rows run"
    )
    unlike = "unknown, no measured layers are similar enough"
    assert headline(row_of(None, None)) == unlike


def test_of_what_may_be_off_by_more_than_two_the_lower_end_is_shown():
    near, wide = row_of(6.0, 3.0, gain_spread=1.9), row_of(6.0, 30.0, gain_spread=3.0)
    assert [table._gain(row) for row in (near, wide)] == ["3.0x", "10x+"]
    assert headline(near) == f"{WHOLE}3.0x" and headline(wide) == f"{WHOLE}at least 10x"
    low, high = (gain.of_program([near, wide], direction) for direction in (-1, 1))
    assert low == pytest.approx(12 / (6 / (3 / 1.9) + 6 / 10))
    assert high == pytest.approx(12 / (6 / (3 * 1.9) + 6 / 90))


def timed(value: float, theirs: float, own: float, **changes: Any) -> ExplanationRow:
    return dataclasses.replace(row_of(None, value, **changes), seconds=own, xla_seconds=theirs)


def test_the_measured_gain_of_all_rows():
    """XLA's time counts on both sides where it keeps a row, whatever its handler took."""
    rows = [
        timed(3.0, 8.0, 1.0, ours=True, count=2),
        timed(1.0, 4.0, 1.0, ours=False),
        row_of(None, 9.0, used=False),
    ]
    text = "measured gain over XLA, all rows together (not the whole program): 3.3x"
    assert table.render("cpu", "amx", False, rows).splitlines()[2] == text  # 20 / (2 + 4)
    assert "measured gain" not in table.render("cpu", "amx", False, [*rows, row_of(None, 1.0)])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.954, "0.95x"), (1, "1.0x"), (9.97, "10x"), (33.4, "33x"), (333, "330x"), (0.05, "0.050x")],
)
def test_two_digits(value: float, text: str):
    assert table._times(value) == text


@on_cpu
def test_what_is_divided_among_devices_is_not_expected_to_gain(on_amx: None):
    """A shard is another problem than the whole, which is what the row shows."""
    need_devices(2)
    mesh = make_mesh(AxisType.Auto, {"data": 2})
    x, w = jnp.ones((8, 32, 32, 128)), jnp.ones((4, 4, 128, 64))
    (whole,) = explain(transposed, x, w).rows
    (divided,) = explain(transposed, jax.device_put(x, NamedSharding(mesh, P("data"))), w).rows
    assert whole.ours and divided.ours
    assert whole.gain is not None and divided.gain is None

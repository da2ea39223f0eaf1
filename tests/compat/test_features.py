"""If an undocumented name of JAX is gone, one feature is off and says so once; all others work as before."""

from __future__ import annotations

import os
import subprocess
import warnings
from pathlib import Path

import pytest
from support import degraded

from jax_convgrad._src.compat.features import FEATURES, Feature, UnsupportedJaxWarning

# For each feature one of its names. The others are looked up together with it: see test_each_name_is_needed.
HIDDEN = {
    "custom_partitioning": "jax._src.custom_partitioning:_sharding_callbacks",
    "lowering_context": "jax._src.interpreters.mlir:ModuleContext.axis_context",
    "lowering_rules": "jax.interpreters.mlir:_platform_specific_lowerings",
    "checkpoint_policies": "jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",
    "unused_results": "jax.interpreters.partial_eval:dce_rules",
    "jet": "jax.experimental.jet:jet_rules",
    "checkify": "jax._src.checkify:nan_error_check",
    "varying_axes": "jax.core:ShapedArray.manual_axis_type",
    "sharding_errors": "jax._src.core:ShardingTypeError",
    "symbolic_sizes": "jax.core:max_dim",
    "program_keys": "jax:make_user_context",
    "traced_programs": "jax._src.source_info_util:SourceInfo.traceback",
}


def run(feature: str, paths: list[str], python: list[str]) -> None:
    # On the CPU, which can be as many devices as the programs want: the names are the same everywhere.
    environment = {**os.environ, "JAX_CONVGRAD_INSTALL": "0", "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_CONVGRAD_REQUIRE_CUDA", None)
    command = [*python, "-W", "ignore", degraded.__file__, feature, *paths]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("feature", list(FEATURES))
def test_without_a_name(feature: str, subprocess_python: list[str]):
    run(feature, [HIDDEN[feature]], subprocess_python)


def test_without_each_attribute(subprocess_python: list[str]):
    run("attributes", [], subprocess_python)


@pytest.mark.parametrize(("feature", "key"), [(f, k) for f in FEATURES for k in FEATURES[f].names])
def test_each_name_is_needed(feature: str, key: str):
    """One that is missing turns its feature off, whichever it is: the programs here hide one of them."""
    entry = FEATURES[feature]
    path = entry.names[key] + "_that_is_gone"
    without = Feature(entry.title, entry.consequence, **{**entry.names, key: path})
    with pytest.warns(UnsupportedJaxWarning, match=path.replace(":", ".")):
        assert without.resolve() is None


def test_without_all_of_them(subprocess_python: list[str]):
    run("all", list(HIDDEN.values()), subprocess_python)


def test_without_names_that_something_public_stands_in_for(subprocess_python: list[str]):
    program = (
        f"import sys; sys.path.insert(0, {str(Path(degraded.__file__).parents[1])!r})\n"
        "from support import degraded\n"
        "degraded.hide('jax.interpreters.xla:apply_primitive')\n"
        "degraded.hide('jax.experimental.xla_metadata:set_xla_metadata')\n"
        "import jax_convgrad\n"
        "with degraded.warned():\n"
        "    degraded.check_plain(jax_convgrad)\n"
        "    degraded.check_explain(jax_convgrad)\n"
    )
    subprocess.run([*subprocess_python, "-c", program], check=True)


@pytest.mark.parametrize("feature", list(FEATURES))
def test_every_name_is_there(feature: str):
    """On the versions that are supported; that of a class is the class itself."""
    entry = FEATURES[feature]
    fresh = Feature(entry.title, entry.consequence, **entry.names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh.resolve() is not None
    assert entry.names or entry.attributes


@pytest.mark.parametrize("path", ["jax:no_such_name", "jax.no_such_module:name"])
def test_a_missing_name(path: str):
    feature = Feature("a test", "Nothing happens.", numpy="numpy:ndarray", gone=path)
    assert feature.look_up() is None
    with pytest.warns(
        UnsupportedJaxWarning, match="a test is off, because jax .* has no jax.*name"
    ):
        assert feature.resolve() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert feature.resolve() is None


def test_a_missing_attribute():
    feature = Feature("a test", "Nothing happens.")
    assert feature.read(1.0, "real.imag") == 0
    with pytest.warns(UnsupportedJaxWarning, match="has no float.real.gone"):
        assert feature.read(1.0, "real.gone", 5) == 5
    assert feature.read(1.0, "gone") is None

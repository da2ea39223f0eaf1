"""What the package does with undocumented names of JAX, one feature at a time.

A JAX release may rename or drop a name that it has not documented. Each feature here lists the names that it
needs and looks them up when it is first used. Where one is gone, that feature is off and says so once; every
other feature works, and results stay right.
"""

from __future__ import annotations

import importlib
import threading
import types
import warnings
from typing import Any

import jax


class UnsupportedJaxWarning(UserWarning):
    """The installed JAX lacks a name that a feature of this package needs. The feature is off."""


_lock = threading.Lock()


class Feature:
    """A part of this package that needs undocumented names of JAX.

    Attributes:
      title: what the feature is, in a few words.
      consequence: a sentence on what happens without the feature.
      names: where each name is, as "module:attribute", by the key under which `resolve` returns it.
      attributes: "module:class.attribute" of the attributes that `read` looks up in objects.
    """

    def __init__(
        self, title: str, consequence: str, *, attributes: tuple[str, ...] = (), **names: str
    ) -> None:
        self.title = title
        self.consequence = consequence
        self.names = names
        self.attributes = attributes
        self._found: types.SimpleNamespace | None = None
        self._missing: str | None = None
        self._has_warned = False

    def resolve(self) -> Any:
        """The values of `names`, each under its key; None, and one warning, where one is missing."""
        found = self.look_up()
        if self._missing is not None:
            self.warn(self._missing)
        return found

    def look_up(self) -> Any:
        """`resolve` without the warning."""
        if self._found is None and self._missing is None:
            found = {}
            for key, path in self.names.items():
                module, _, attribute = path.partition(":")
                try:
                    found[key] = getattr(importlib.import_module(module), attribute)
                except (ImportError, AttributeError):
                    self._missing = f"{module}.{attribute}"
                    break
            else:
                self._found = types.SimpleNamespace(**found)
        return self._found

    def read(self, value: Any, path: str, default: Any = None) -> Any:
        """``value``'s attribute, possibly a nested one; ``default`` and one warning if it is missing."""
        owner = value
        for name in path.split("."):
            try:
                value = getattr(value, name)
            except AttributeError:
                self.warn(f"{type(owner).__name__}.{path}")
                return default
        return value

    def warn(self, missing: str) -> None:
        """Says once that the feature is off, because JAX has no ``missing``."""
        with _lock:
            if self._has_warned:
                return
            self._has_warned = True
        warnings.warn(
            f"jax_convgrad: {self.title} is off, because jax {jax.__version__} has no {missing}. "
            f"{self.consequence}",
            UnsupportedJaxWarning,
            stacklevel=3,
        )


_MLIR = "jax._src.interpreters.mlir"

CUSTOM_PARTITIONING = Feature(
    "computing each device's shard of a sharded call",
    "XLA partitions plain operations instead.",
    attributes=(
        f"{_MLIR}:ModuleContext.platforms",
        f"{_MLIR}:ModuleContext.backend",
        f"{_MLIR}:ModuleContext.add_keepalive",
    ),
    callbacks="jax._src.custom_partitioning:_sharding_callbacks",
    call_name="jax._src.custom_partitioning:_CUSTOM_PARTITIONING_CALL_NAME",
    rule_to_mlir="jax._src.custom_partitioning_sharding_rule:sdy_sharding_rule_to_mlir",
    ArrayMapping="jax.experimental.custom_partitioning:ArrayMapping",
    CompoundFactor="jax.experimental.custom_partitioning:CompoundFactor",
    SdyShardingRule="jax.experimental.custom_partitioning:SdyShardingRule",
    custom_call=f"{_MLIR}:custom_call",
    dtype_to_ir_type="jax.interpreters.mlir:dtype_to_ir_type",
    ir="jax.interpreters.mlir:ir",
)

LOWERING_CONTEXT = Feature(
    "knowing whether a program is sharded or exported",
    "With several devices all programs are plain operations; with one nothing changes, except that a "
    "program for jax.export may hold calls of this package.",
    attributes=(
        f"{_MLIR}:ModuleContext.axis_context",
        "jax._src.sharding_impls:SPMDAxisContext.manual_axes",
        f"{_MLIR}:ModuleContext.lowering_parameters",
        f"{_MLIR}:LoweringParameters.for_export",
    ),
)

LOWERING_RULES = Feature(
    "install() for jax.lax's convolutions",
    "They stay JAX's own; install() still replaces jax.image's resizes.",
    for_all="jax.interpreters.mlir:_lowerings",
    for_one="jax.interpreters.mlir:_platform_specific_lowerings",
    attributes=(f"{_MLIR}:LoweringRuleEntry.rule",),
)

CHECKPOINT_POLICIES = Feature(
    "saving this package's results by the policies of jax.checkpoint",
    "They are computed again in the backward pass, by every policy that does not save everything.",
    rules="jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",
)

UNUSED_RESULTS = Feature(
    "leaving out gradients that nothing uses",
    "A call that computes several gradients computes all of them.",
    rules="jax.interpreters.partial_eval:dce_rules",
)

JET = Feature(
    "jax.experimental.jet",
    "It fails on this package's operators.",
    rules="jax.experimental.jet:jet_rules",
    jet="jax.experimental.jet:jet",
)

CHECKIFY = Feature(
    "checkify's search for NaNs",
    "It does not look into this package's operators.",
    error_checks="jax._src.checkify:error_checks",
    nan_error_check="jax._src.checkify:nan_error_check",
)

VARYING_AXES = Feature(
    "reading which mesh axes an array varies over in jax.shard_map",
    "There jax.lax brings the operands to common axes.",
    attributes=("jax.core:ShapedArray.manual_axis_type",),
)

SHARDING_ERRORS = Feature(
    "raising JAX's own ShardingTypeError",
    "This package raises a TypeError of that name for ambiguous shardings.",
    ShardingTypeError="jax._src.core:ShardingTypeError",
)

SYMBOLIC_SIZES = Feature(
    "the bounds of symbolic sizes",
    "A symbolic size that would be negative is not made 0, and a symbolic workspace has no upper limit.",
    max_dim="jax.core:max_dim",
    min_dim="jax.core:min_dim",
)

PROGRAM_KEYS = Feature(
    "keeping programs of a disabled() block apart from others in JAX's caches",
    "All compiled programs are dropped at both ends of the block instead; meanwhile threads share theirs.",
    make_user_context="jax:make_user_context",
)

TRACED_PROGRAMS = Feature(
    "all that explain() reads from a traced program",
    "Its rows may lack source lines, scopes, whether a row is backward, or shardings.",
    attributes=(
        "jax.stages:Traced._params",
        "jax._src.source_info_util:SourceInfo.traceback",
        "jax._src.source_info_util:SourceInfo.name_stack",
        "jax._src.source_info_util:NameStack.stack",
        "jax.extend.core:Jaxpr.debug_info",
        "jax.extend.core:DebugInfo.func_filename",
    ),
)

FEATURES = {
    "custom_partitioning": CUSTOM_PARTITIONING,
    "lowering_context": LOWERING_CONTEXT,
    "lowering_rules": LOWERING_RULES,
    "checkpoint_policies": CHECKPOINT_POLICIES,
    "unused_results": UNUSED_RESULTS,
    "jet": JET,
    "checkify": CHECKIFY,
    "varying_axes": VARYING_AXES,
    "sharding_errors": SHARDING_ERRORS,
    "symbolic_sizes": SYMBOLIC_SIZES,
    "program_keys": PROGRAM_KEYS,
    "traced_programs": TRACED_PROGRAMS,
}

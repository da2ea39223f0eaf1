"""The plan choices of the CUDA module: settings, list, save, load. See `jax_convgrad.plans`."""

from __future__ import annotations

import builtins
import json
import operator
import os
import pathlib
import uuid
from typing import Any, Literal

from jax_convgrad._src.runtime import registry, settings

AlgorithmSearch = Literal["default", "heuristic", "exhaustive"]

_SEARCHES = ("default", "heuristic", "exhaustive")
_FORMAT = "jax_convgrad plans 1"
_SAVED = ("problem", "engine", "workspace_bytes", "microseconds", "chosen_by")


def set_algorithm_search(search: AlgorithmSearch) -> None:
    """Sets how an engine is chosen for a problem that has none yet.

    Call it before the first step: functions that were compiled under another setting are compiled again.

    Args:
      search: "default" takes the fastest of the first 12 engines that cuDNN's heuristics name, one that
        they name last, and this project's own. Where one of the project's own comes first, it looks at only
        two of cuDNN's. Engines that transform the arrays (Winograd, Fourier) and lose digits are left out.
        After ``set_deterministic(True)`` it takes the first of these engines, so that every process makes
        the same choice. "heuristic" takes the first engine that works, "exhaustive" the fastest of all.
        Engines are timed once, on memory of their own, while the program is prepared. The bytes of an
        engine's workspace count as the time in which the device's memory moves them. If there is no free
        memory for timing, the first engine that works is taken, and `plans.list` says so.

    Raises:
      ValueError: ``search`` is not one of these.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.set_algorithm_search("default")
      >>> jax_convgrad.set_algorithm_search("quick")
      Traceback (most recent call last):
        ...
      ValueError: set_algorithm_search: search must be one of ..., got 'quick'
    """
    if search not in _SEARCHES:
        raise ValueError(
            f"set_algorithm_search: search must be one of {', '.join(_SEARCHES)}, got {search!r}"
        )
    settings.change(search=search)


def set_workspace_limit(bytes: int | None) -> None:
    """Sets the most memory that an engine may use beside its arrays.

    Call it before the first step: functions that were compiled under another limit are compiled again. If
    every engine of a problem needs more than the limit, its program fails with RESOURCE_EXHAUSTED and a
    text that says how much would be enough.

    Args:
      bytes: the limit of each handler's call. None leaves the package's own limit, which follows from the
        arrays' sizes.

    Raises:
      TypeError: not an int.
      ValueError: a negative number, or 2^63 or more.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.set_workspace_limit(2**28)
      >>> jax_convgrad.plans.workspace_limit()
      268435456
      >>> jax_convgrad.set_workspace_limit(None)
    """
    limit = None
    if bytes is not None:
        if isinstance(bytes, bool) or not hasattr(bytes, "__index__"):
            raise TypeError(f"set_workspace_limit: bytes must be an int or None, got {bytes!r}")
        limit = operator.index(bytes)
        if not 0 <= limit < 2**63:
            raise ValueError(
                f"set_workspace_limit: bytes must be at least 0 and below 2^63, got {bytes!r}"
            )
    settings.change(workspace_limit=limit)


def workspace_limit() -> int | None:
    """The limit that `jax_convgrad.set_workspace_limit` was last called with.

    Example:
      >>> import jax_convgrad
      >>> from jax_convgrad import plans
      >>> jax_convgrad.set_workspace_limit(None)
      >>> plans.workspace_limit() is None
      True
    """
    return settings.current().workspace_limit


def set_deterministic(deterministic: bool) -> None:
    """Sets whether only engines are used that give the same bits every time.

    Call it before the first step: functions that were compiled under the other setting are compiled again.

    Args:
      deterministic: True allows only this project's engines and those that cuDNN declares deterministic.
        The default search then takes the first that works, so that every process takes the same one. False
        allows any engine.

    XLA's own flags, ``XLA_FLAGS=--xla_gpu_deterministic_ops=true`` and
    ``--xla_gpu_exclude_nondeterministic_ops=true``, ask for the same and outweigh False.

    Raises:
      TypeError: neither True nor False.

    Example:
      >>> import jax_convgrad
      >>> jax_convgrad.set_deterministic(True)
      >>> jax_convgrad.set_deterministic(False)
      >>> jax_convgrad.set_deterministic(None)
      Traceback (most recent call last):
        ...
      TypeError: set_deterministic: expected True or False, got None
    """
    if not isinstance(deterministic, bool):
        raise TypeError(f"set_deterministic: expected True or False, got {deterministic!r}")
    settings.change(deterministic=deterministic)


def list() -> builtins.list[dict[str, Any]]:
    """The plans since the last `clear`, the most recently used first.

    Returns:
      One dict per plan: "problem" (every field that decides it, the device and cuDNN's version),
      "engine" ("native_depthwise", "native_dilated", a name that begins with ``native_thin_`` or
      ``native_implicit_gemm_``, or cuDNN's number for it and its settings),
      "workspace_bytes", "chosen_by" ("default", "heuristic", "exhaustive" or "loaded"), "microseconds"
      (None unless it was timed), "note" (why it was not chosen as asked for, else empty) and "tried"
      (the outcome for each engine that was timed or failed).

    Example:
      >>> from jax_convgrad import plans
      >>> plans.clear()
      >>> plans.list()
      []
    """
    module = registry.cuda_module()
    return [] if module is None else module.plans()


def save(path: str | os.PathLike[str]) -> int:
    """Writes the choices to a JSON file, including choices that were loaded and are not used yet.

    Args:
      path: the file, which is replaced as a whole or not at all.

    Returns:
      The number of choices.

    Raises:
      OSError: the file cannot be written.

    Example:
      >>> import tempfile
      >>> from jax_convgrad import plans
      >>> with tempfile.NamedTemporaryFile() as file:
      ...     assert plans.save(file.name) == plans.load(file.name)
    """
    module = registry.cuda_module()
    choices: dict[str, dict[str, Any]] = {}
    if module is not None:
        for problem, engine in module.loaded_choices():
            choices[problem] = {"problem": problem, "engine": engine, "chosen_by": "loaded"}
        for plan in reversed(module.plans()):
            choices[plan["problem"]] = {key: plan[key] for key in _SAVED}
    text = json.dumps({"format": _FORMAT, "choices": [*choices.values()]}, indent=1)
    target = pathlib.Path(os.path.realpath(path))
    # A reader, or a process that is killed now, must not leave or meet half a file.
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        partial.write_text(text + "\n")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return len(choices)


def load(path: str | os.PathLike[str]) -> int:
    """Reads choices that `save` wrote: their problems then take the named engines without a search.

    A choice for another device or another cuDNN does no harm, because its problem never comes up; an
    engine that no longer works is replaced by a search. Call it before the first step: problems that have
    a plan keep it.

    Args:
      path: a file that `save` wrote.

    Returns:
      The number of choices.

    Raises:
      ValueError: the file was not written by `save`.
      OSError: the file cannot be read.

    Example:
      >>> import os, tempfile
      >>> from jax_convgrad import plans
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = os.path.join(folder, "plans.json")
      ...     written = plans.save(path)
      ...     assert plans.load(path) == written
    """
    try:
        content = json.loads(pathlib.Path(path).read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, expected {_FORMAT!r}")
        choices = [(choice["problem"], choice["engine"]) for choice in content["choices"]]
        if not all(isinstance(text, str) for choice in choices for text in choice):
            raise ValueError("a problem or an engine is not a string")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"plans.load: {os.fspath(path)!r} holds no plans: {error}") from None
    if (module := registry.cuda_module()) is not None:
        module.load_choices(choices)
    return len(choices)


def clear() -> None:
    """Forgets all plans and all loaded choices: every problem is searched anew.

    Programs that were compiled, lowered or exported before keep their engines. Functions under `jax.jit`
    are compiled again. The number of times that plans were cleared is part of each program. If several
    processes share programs or a compilation cache, call this function in all of them or in none.

    Example:
      >>> from jax_convgrad import plans
      >>> plans.clear()
      >>> plans.list()
      []
    """
    if (module := registry.cuda_module()) is not None:
        module.clear_plans()
        settings.invalidate_jit_caches()

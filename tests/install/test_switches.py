"""install() as a context manager, disabled(), the environment's switches and what the log says."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

import jax_convgrad
from jax_convgrad._src import compat
from jax_convgrad._src.dispatch.override import (
    is_package_off,
    overridden_backend,
    override_backend,
)
from jax_convgrad._src.install import switch
from jax_convgrad._src.runtime import environment, registry, remedies, settings

IMAGE = jnp.ones((1, 16, 16, 32), jnp.float32)
BOTH = ("cpu", "cuda")
KERNEL = jnp.ones((4, 4, 32, 16), jnp.float32)


@pytest.fixture(autouse=True)
def off():
    jax_convgrad.uninstall()
    yield
    jax_convgrad.uninstall()


def program(layer=jax.lax.conv_transpose) -> str:
    """What a gradient is compiled from, traced anew at each call."""
    loss = lambda kernel: jnp.sum(layer(IMAGE, kernel, (2, 2), "SAME") ** 2)  # noqa: E731
    return jax.jit(jax.grad(loss)).lower(KERNEL).as_text()


@pytest.mark.on_cpu
def test_a_with_block_undoes_install():
    plain = program()
    with jax_convgrad.install("cpu") as installation:
        assert installation.platforms == jax_convgrad.installed() == ("cpu",)
        assert program() != plain
        with jax_convgrad.install():
            assert jax_convgrad.installed() == ("cpu", "cuda")
        assert jax_convgrad.installed() == ("cpu",)
    assert jax_convgrad.installed() == ()
    assert program() == plain


def test_a_with_block_undoes_install_after_an_error():
    with pytest.raises(KeyError), jax_convgrad.install():
        raise KeyError
    assert jax_convgrad.installed() == ()


def test_gpu_is_cuda():
    jax_convgrad.install("gpu")
    assert jax_convgrad.installed() == ("cuda",)


def test_install_takes_names_alone():
    with pytest.raises(TypeError, match="names out of cpu, cuda or gpu, or None for all, got True"):
        jax_convgrad.install(True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="names out of cpu, cuda or gpu, or None for all, got 3"):
        jax_convgrad.install(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"among cpu, cuda or gpu, got \['cpu'\]"):
        jax_convgrad.install([["cpu"]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="among cpu, cuda or gpu, got 'tpu'"):
        jax_convgrad.install("tpu")


def test_disabled_turns_install_and_layers_off():
    plain = program()
    jax_convgrad.install("cpu")
    assert "jax_convgrad_conv" in program(jax_convgrad.conv_transpose)
    with jax_convgrad.disabled():
        assert jax_convgrad.installed() == ()
        assert program() == plain
        assert "jax_convgrad_conv" not in program(jax_convgrad.conv_transpose)
    assert jax_convgrad.installed() == ("cpu",)
    assert "jax_convgrad_conv" in program(jax_convgrad.conv_transpose)


def test_blocks_of_two_threads_may_end_in_any_order():
    """A begins, B begins, A ends, B ends: of `disabled`, of `install`, and of one of each.

    What `install` does is everybody's, what `disabled` does its own thread's.
    """
    pairs = [
        (jax_convgrad.disabled, jax_convgrad.disabled, [(), (), ("cpu",), ("cpu",)]),
        (jax_convgrad.install, jax_convgrad.install, [BOTH, BOTH, BOTH, ("cpu",)]),
        (jax_convgrad.disabled, jax_convgrad.install, [(), BOTH, BOTH, ("cpu",)]),
        (jax_convgrad.install, jax_convgrad.disabled, [BOTH, (), ("cpu",), ("cpu",)]),
    ]
    jax_convgrad.install("cpu")
    for first, second, expected in pairs:
        turn = threading.Barrier(2, timeout=60)
        seen: list[tuple[str, ...]] = []

        # The first waits in its block until the second is in its own; the second until the first has left.
        def begin(block, turn=turn, seen=seen) -> None:
            with block():
                seen.append(jax_convgrad.installed())
                turn.wait()
                turn.wait()
            seen.append(jax_convgrad.installed())
            turn.wait()

        def follow(block, turn=turn, seen=seen) -> None:
            turn.wait()
            with block():
                seen.append(jax_convgrad.installed())
                turn.wait()
                turn.wait()
            seen.append(jax_convgrad.installed())

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(begin, first), pool.submit(follow, second)]:
                done.result()
        assert seen == expected, (first, second)
    jax_convgrad.uninstall()
    assert jax_convgrad.installed() == ()


@pytest.mark.on_cpu
def test_no_decision_is_seen_by_another_thread():
    """The first begins, the second begins, the first ends, the second ends; both lower all the while."""
    rounds = 34
    gradient = jax.jit(jax.grad(lambda w, x: jnp.sum(jax.lax.conv_transpose(x, w, (2, 2), "SAME"))))
    layer = jax.jit(lambda w, x: jax_convgrad.conv_transpose(x, w, (2, 2), "SAME"))

    def computed_here(size: int) -> set[bool]:
        # Shapes that nobody has lowered, one function for all: what JAX keeps of it must not be mixed up.
        image = jax.ShapeDtypeStruct((1, size, 1, 32), jnp.float32)
        texts = [f.lower(KERNEL, image).as_text() for f in (gradient, layer)]
        return {"jax_convgrad_conv" in text for text in texts}

    turn = threading.Barrier(2, timeout=300)

    def first() -> list[set[bool]]:
        seen = []
        for i in range(rounds):
            with jax_convgrad.disabled():
                for size in (3 * i + 1, 3 * i + 2):
                    turn.wait()
                    seen.append(computed_here(size))
            turn.wait()
            seen.append(computed_here(3 * i + 3))
        return seen

    def second() -> list[set[bool]]:
        seen = []
        for i in range(rounds):
            turn.wait()
            seen.append(computed_here(3 * i + 1))
            with jax_convgrad.disabled():
                for size in (3 * i + 2, 3 * i + 3):
                    turn.wait()
                    seen.append(computed_here(size))
        return seen

    with jax_convgrad.install("cpu"), ThreadPoolExecutor(2) as pool:
        by_first, by_second = (pool.submit(run) for run in (first, second))
        assert by_first.result() == [{False}, {False}, {True}] * rounds
        assert by_second.result() == [{True}, {False}, {False}] * rounds


def test_install_inside_a_disabled_block_is_for_the_others(caplog: pytest.LogCaptureFixture):
    with ThreadPoolExecutor(1) as elsewhere, caplog.at_level(logging.INFO, logger="jax_convgrad"):
        with jax_convgrad.disabled():
            assert repr(jax_convgrad.install("cpu")) == "install() is off"
            assert (
                caplog.messages[-1] == "install(): takes effect in this thread when disabled() ends"
            )
            assert jax_convgrad.installed() == ()
            assert elsewhere.submit(jax_convgrad.installed).result() == ("cpu",)
        assert jax_convgrad.installed() == ("cpu",)
        with jax_convgrad.disabled():
            jax_convgrad.uninstall()
            assert caplog.messages[-1].startswith("uninstall(): install() is off; ")
            assert elsewhere.submit(jax_convgrad.installed).result() == ()
        assert jax_convgrad.installed() == ()


def test_overrides_and_disabled_nest():
    for block in (override_backend("gemm"), jax_convgrad.disabled()):
        before = overridden_backend(), is_package_off()
        with block, jax_convgrad.disabled():
            assert (overridden_backend(), is_package_off()) == ("xla", True)
            with override_backend("gemm"):
                assert (overridden_backend(), is_package_off()) == ("xla", True)
            assert (overridden_backend(), is_package_off()) == ("xla", True)
        assert (overridden_backend(), is_package_off()) == before


def test_disabled_drops_no_programs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: pytest.fail("programs were dropped"))
    with jax_convgrad.disabled():
        pass


def test_what_uninstall_has_undone_is_not_undone_again():
    with jax_convgrad.install():
        jax_convgrad.uninstall()
        jax_convgrad.install()
    assert jax_convgrad.installed() == BOTH


def test_a_call_is_undone_once():
    first = jax_convgrad.install("cpu")
    with first:
        pass
    jax_convgrad.install("cpu")
    with first:
        pass
    assert jax_convgrad.installed() == ("cpu",)


def test_an_interrupted_block_ends(monkeypatch: pytest.MonkeyPatch):
    def interrupt(key: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    jax_convgrad.install("cpu")
    monkeypatch.setattr(compat, "key_programs", interrupt)
    with pytest.raises(KeyboardInterrupt), jax_convgrad.disabled():
        pass
    assert jax_convgrad.installed() == ("cpu",)


@pytest.mark.parametrize("name", ["disabled", "install"])
def test_a_reload_inside_a_block(name: str):
    """The block's end has its effect, and so have blocks after it."""
    for before in ((), ("cpu",)):
        if before:
            switch.install(before)
        with getattr(switch, name)():
            inside = switch.installed()
            importlib.reload(switch)
            assert switch.installed() == inside
        assert switch.installed() == before
        with switch.disabled():
            assert switch.installed() == ()
        with switch.install():
            assert switch.installed() == BOTH
        assert switch.installed() == before
    switch.uninstall()


@pytest.fixture
def none_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """No platform's handlers are, whatever this run of the tests asks for."""
    for platform in BOTH:
        monkeypatch.delenv(f"JAX_CONVGRAD_REQUIRE_{platform.upper()}", raising=False)


@pytest.mark.usefixtures("none_required")
@pytest.mark.parametrize("platform", BOTH)
def test_what_is_required_must_not_be_disabled(platform: str, monkeypatch: pytest.MonkeyPatch):
    """Neither passes silently: install(), which would do nothing, nor a layer, which XLA would compute."""
    required = f"JAX_CONVGRAD_REQUIRE_{platform.upper()}"
    message = (
        f"{required}=1, but JAX_CONVGRAD_DISABLE=1 turns the {platform} handlers off. "
        "To fix this, run: unset JAX_CONVGRAD_DISABLE "
    )
    monkeypatch.setattr(registry, "_has_cuda_device", lambda: True)
    monkeypatch.setenv("JAX_CONVGRAD_DISABLE", "1")
    monkeypatch.setenv(required, "1")
    jax.clear_caches()
    with pytest.raises(RuntimeError, match=message):
        jax_convgrad.install()
    with pytest.raises(RuntimeError, match=message):
        program(jax_convgrad.conv_transpose)
    monkeypatch.setenv(required, "0")
    assert repr(jax_convgrad.install()) == "install() is off"
    program(jax_convgrad.conv_transpose)
    jax.clear_caches()


@pytest.mark.usefixtures("none_required")
def test_the_environment_disables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAX_CONVGRAD_DISABLE", "1")
    jax.clear_caches()
    assert repr(jax_convgrad.install()) == "install() is off"
    assert jax_convgrad.installed() == ()
    assert "jax_convgrad_conv" not in program(jax_convgrad.conv_transpose)
    jax.clear_caches()


@pytest.mark.parametrize(
    ("value", "platforms"),
    [
        ("1", ("cpu", "cuda")),
        ("True", ("cpu", "cuda")),
        ("cpu", ("cpu",)),
        ("cuda", ("cuda",)),
        ("gpu", ("cuda",)),
        ("cpu,cuda", ("cpu", "cuda")),
        ("0", ()),
        ("false", ()),
        ("", ()),
    ],
)
def test_values_of_the_install_variable(
    value: str, platforms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAX_CONVGRAD_INSTALL", value)
    assert environment.platforms_to_install() == platforms


@pytest.mark.parametrize(
    "name", ["JAX_CONVGRAD_DISABLE", "JAX_CONVGRAD_REQUIRE_CPU", "JAX_CONVGRAD_REQUIRE_CUDA"]
)
def test_an_unknown_value_of_a_switch_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "yes please")
    with pytest.raises(ValueError, match=f"{name} must be 1, true, 0 or false, got 'yes please'"):
        environment.flag(name)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("JAX_CONVGRAD_INSTALL", "1, true, 0, false, cpu, cuda or gpu"),
        ("JAX_CONVGRAD_DISABLE", "1, true, 0 or false"),
        ("JAX_CONVGRAD_REQUIRE_CPU", "1, true, 0 or false"),
        ("JAX_CONVGRAD_REQUIRE_CUDA", "1, true, 0 or false"),
    ],
)
def test_an_unknown_value_stops_the_import(name: str, values: str, subprocess_python: list[str]):
    result = subprocess.run(
        [*subprocess_python, "-c", "import jax_convgrad"],
        env={**os.environ, name: "yes"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert f"ValueError: {name} must be {values}, got 'yes'" in result.stderr


@pytest.mark.parametrize("platform", BOTH)
def test_an_unknown_value_that_is_set_later_stops_install(
    platform: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(f"JAX_CONVGRAD_REQUIRE_{platform.upper()}", "yes")
    with pytest.raises(ValueError, match="must be 1, true, 0 or false, got 'yes'"):
        jax_convgrad.install()
    assert jax_convgrad.installed() == ()


def test_cuda_is_required_and_jax_runs_on_the_cpu(subprocess_python: list[str]):
    code = "import jax, jax.numpy as jnp, jax_convgrad\n" + (
        "jax_convgrad.install(); x = jnp.ones((1, 3, 8, 8)); w = jnp.ones((4, 3, 3, 3))\n"
        "jax.lax.conv(x, w, (1, 1), 'SAME')"
    )
    result = subprocess.run(
        [*subprocess_python, "-c", code],
        env={**os.environ, "JAX_CONVGRAD_REQUIRE_CUDA": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "JAX_CONVGRAD_REQUIRE_CUDA=1, but no CUDA device: JAX has no" in result.stderr
    assert "To fix this, run: pip install" in result.stderr


@pytest.mark.parametrize(
    ("platform", "reason", "command"),
    [
        ("cuda", "the module was not built", 'JAX_CONVGRAD_CUDA=1 pip install ".[cuda13]"'),
        ("cpu", "the module was not built", "pip install --force-reinstall --no-deps"),
        (
            "cpu",
            "the package onednn-cpu-gomp is not installed",
            "pip install --force-reinstall onednn-cpu-gomp",
        ),
        (
            "cpu",
            "OSError: libgomp.so.1: cannot open shared object file: No such file or directory",
            "apt install libgomp1",
        ),
        (
            "cpu",
            "OSError: libdnnl.so.3: cannot open shared object file: No such file or directory",
            "pip install --force-reinstall onednn-cpu-gomp",
        ),
        (
            "cpu",
            "ImportError: libdnnl-0123abcd.so.3.2: cannot open shared object file",
            "pip install --force-reinstall --no-deps jax_convgrad-*.whl",
        ),
        (
            "cpu",
            "ImportError: libgomp-0123abcd.so.1.0.0: cannot open shared object file",
            "pip install --force-reinstall --no-deps jax_convgrad-*.whl",
        ),
        (
            "cuda",
            "ImportError: libcudnn.so.9: cannot open",
            "pip install --upgrade nvidia-cudnn-cu13",
        ),
        (
            "cuda",
            "RuntimeError: the NVIDIA driver supports CUDA 12.8 at most",
            'JAX_CONVGRAD_CUDA=1 pip install ".[cuda12]"',
        ),
        ("cuda", "device 1 has compute capability 7.5", "export CUDA_VISIBLE_DEVICES="),
    ],
)
def test_a_missing_handler_s_message_ends_with_a_command(platform: str, reason: str, command: str):
    last = remedies.with_command(platform, reason).rpartition("To fix this, run: ")[2]
    assert last.startswith(command)


def test_a_command_is_for_the_cuda_of_jax(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name != "jax-cuda12-plugin":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.10.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert 'pip install ".[cuda12]"' in remedies.with_command("cuda", "the module was not built")
    assert "nvidia-cudnn-cu12" in remedies.with_command("cuda", "libcudnn.so.9: cannot open")


@pytest.mark.parametrize("platform", ["cpu", "tpu", None])
def test_cuda_is_required_wherever_a_program_runs(
    platform: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAX_CONVGRAD_REQUIRE_CUDA", "1")
    monkeypatch.setattr(registry, "_has_cuda_device", lambda: False)
    with pytest.raises(RuntimeError, match="JAX_CONVGRAD_REQUIRE_CUDA=1, but no CUDA device"):
        registry.check_required(platform)
    monkeypatch.setattr(registry, "_has_cuda_device", lambda: True)
    registry.check_required(platform)


def test_the_warning_the_log_and_info_end_with_the_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    missing = registry.PlatformHandlers(reason="ImportError: was not built", broken=True)
    monkeypatch.setattr(registry, "_load", lambda platform: missing)
    monkeypatch.setattr(registry, "_warned", set())
    monkeypatch.delenv("JAX_CONVGRAD_REQUIRE_CUDA", raising=False)
    ending = str(remedies.command("cuda", "was not built"))
    caplog.set_level(logging.INFO, logger="jax_convgrad")
    with pytest.warns(jax_convgrad.MissingHandlersWarning) as caught:
        for _ in range(2):
            registry.require("cuda")
    assert caplog.messages == [str(caught[0].message)]
    assert str(caught[0].message).endswith(f"To fix this, run: {ending}")
    assert registry.describe()["handlers"]["cuda"]["remedy"] == ending
    with pytest.raises(RuntimeError) as error:
        jax_convgrad.load_handlers("cuda")
    assert str(error.value).endswith(ending)


@pytest.mark.on_cpu
def test_the_log(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, logger="jax_convgrad"):
        with jax_convgrad.install("cpu"):
            program()
    levels: dict[int, list[str]] = {record.levelno: [] for record in caplog.records}
    for record in caplog.records:
        levels[record.levelno].append(record.getMessage())
    assert (
        "install(): convolutions and resizes run in jax_convgrad on cpu" in levels[logging.INFO][0]
    )
    assert levels[logging.INFO][-1].startswith("uninstall(): ")
    assert any(
        text.startswith("conv_wgrad float32, x ") and "on cpu: " in text
        for text in levels[logging.DEBUG]
    )


@pytest.mark.parametrize(
    ("flags", "deterministic"),
    [
        ("", False),
        ("--xla_gpu_deterministic_ops", True),
        ("--xla_gpu_deterministic_ops=true", True),
        ("--xla_gpu_exclude_nondeterministic_ops=1", True),
        ("--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False),
        ("--xla_gpu_autotune_level=0", False),
    ],
)
def test_xlas_deterministic_flags_are_a_calls(
    flags: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
):
    """The attribute by which the CUDA module leaves out engines that cuDNN calls nondeterministic."""
    monkeypatch.setattr(settings, "_current", settings.Settings())  # as no other test left it
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert settings.snapshot().attributes["deterministic"] == deterministic
    assert settings.current().deterministic == deterministic


def test_xla_flags_in_a_file(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "flags").write_text("--xla_gpu_deterministic_ops=true\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert environment.xla_is_deterministic()


@pytest.mark.usefixtures("uninstalled")
@pytest.mark.parametrize("on", [True, False], ids=["install", "uninstall"])
def test_an_interrupt_while_programs_are_dropped_is_made_up_for(
    on: bool, monkeypatch: pytest.MonkeyPatch
):
    """The next call drops them, although it finds everything as it should be."""
    dropped = []

    def interrupted() -> None:
        monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(True))
        raise KeyboardInterrupt

    switch = jax_convgrad.install if on else jax_convgrad.uninstall
    (jax_convgrad.uninstall if on else jax_convgrad.install)()
    monkeypatch.setattr(jax, "clear_caches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        switch()
    assert bool(jax_convgrad.installed()) is on and not dropped
    switch()
    assert dropped == [True]
    switch()
    assert dropped == [True], "once is enough"

"""The command line: the console script, the report of `info`, and `bench --quick` in the field's words."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path

import pytest

import jax_convgrad
from jax_convgrad.__main__ import COMMANDS, main
from jax_convgrad._src.commands import machine
from jax_convgrad._src.timing.processors import cpu_model
from jax_convgrad.bench import cli
from jax_convgrad.bench.forms import PASS_WORDS, PASSES

ROOT = Path(__file__).parents[2]


def test_the_console_script_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["jax-convgrad"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: jax-convgrad " + "".join(command))


def test_no_command_is_the_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: jax-convgrad ") and all(name in out for name in COMMANDS)
    assert not err


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"jax-convgrad {jax_convgrad.__version__}\n"


def test_info_is_a_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["CPU"] == cpu_model()
    assert {"instruction set", "GPUs", "NVIDIA driver", "JAX's devices"} <= set(found["machine"])
    assert found["machine"]["JAX's devices"]
    missing = found["missing, and how to get it"]
    for platform, entry in found["handlers"].items():
        assert (f"{platform} handlers" in missing) == (not entry["available"])
        if entry["remedy"]:
            assert missing[f"{platform} handlers"] == entry["remedy"]


def test_gpus_are_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 9.0, 580.159.04'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = machine.describe()
    assert found["GPUs"] == ["NVIDIA H100 80GB HBM3 (compute capability 9.0)"]
    assert found["NVIDIA driver"] == ["580.159.04"]


def test_passes_by_the_fields_words_and_by_the_keys_of_old_files():
    assert set(PASS_WORDS.values()) == set(PASSES)
    assert cli._passes("forward, weight-gradient,backward", ()) == ["fprop", "dw", "dxdwdb"]
    assert cli._passes("dxdwdb,double-backward", ()) == ["dxdwdb", "ddxddw"]


def test_quick_is_a_few_layers(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "--quick", "--list"]) == 0
    kinds = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["conv", "convt"]


def test_bench_says_first_how_long_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case = {
        "name": "t",
        "kind": "conv",
        "n": 1,
        "cin": 2,
        "sp": [6, 6],
        "cout": 2,
        "k": 3,
        "dt": "f32",
    }
    case |= {"s": 1, "p": 1, "op": 0, "d": 1, "g": 1}
    (tmp_path / "cases.json").write_text(json.dumps([case]))
    options = ["--cases", str(tmp_path / "cases.json"), "--quick", "--passes", "input-gradient"]
    assert main(["bench", *options]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("bench: 1 layers, 1 passes by jax_convgrad, lax: about 6 s\n")
    assert "input gradient" in out

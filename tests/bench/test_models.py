"""benchmarks/models.py: the models are the same in both libraries, and the report says what was measured."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.programs import equations_of

import jax_convgrad

pytest.importorskip("flax")
pytest.importorskip("optax")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import models
import models_flax_layers
import models_tasks

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("uninstalled")]

TINY = {
    "unet2": models_tasks.unet(2, 2, 8, 3, (2, 4, 8), "float32"),
    "unet3": models_tasks.unet(3, 1, 8, 1, (2, 4), "bfloat16"),
    "vocoder": models_tasks.vocoder(1, 2, 16, (3, 7), "float32"),
    "generator": models_tasks.generator(2, 16, "float32"),
    "segmenter": models_tasks.segmenter(1, 33, 2, 4, "float32"),
    "resnet": models_tasks.resnet(2, 32, (1, 2), 4, 5, "float32"),
    "convnext": models_tasks.convnext(2, 32, (1, 2), (4, 6), 5, "float32"),
    # Blocks with and without expansion, squeeze, stride and shortcut.
    "mobilenet": models_tasks.Task(
        "mobilenet",
        {
            "stem": 4,
            "blocks": (
                (3, 1, 4, 4, 0, "relu"),
                (5, 2, 12, 6, 5, "hard_swish"),
                (3, 1, 12, 6, 3, "silu"),
                (5, 1, 10, 4, 0, "relu"),
            ),
            "last": 8,
            "hidden": 7,
            "classes": 5,
            "activation": "hard_swish",
            "excite": ("relu", "hard_sigmoid"),
        },
        (2, 32, 32, 3),
        (2, 5),
        "float32",
    ),
    "replknet": models_tasks.replknet(1, 12, 4, 2, 9, "float32"),
}


@pytest.mark.pytorch
@pytest.mark.parametrize("name", list(TINY))
def test_both_libraries_have_the_same_model(name: str, rng: np.random.Generator):
    """In float64, from the same weights: no layer, padding or reversal is another one."""
    import models_torch_layers
    import torch

    task = TINY[name]
    model = task.model().clone(dtype=np.float64)
    x = rng.standard_normal(task.x)
    weights = jax.tree.map(
        lambda a: rng.standard_normal(a.shape) / np.sqrt(max(1, a.size // a.shape[-1])),
        model.init(jax.random.key(0), x),
    )
    expected = np.asarray(model.apply(weights, x))
    assert expected.shape == task.y
    other = task.torch_model().double()
    models_torch_layers.load(other, models_flax_layers.weights_in_order(model, weights, x))
    image = x if x.ndim == 2 else np.moveaxis(x, -1, 1)
    got = other(torch.from_numpy(np.ascontiguousarray(image))).detach().numpy()
    assert np.std(expected) > 0.01
    np.testing.assert_allclose(np.moveaxis(got, 1, -1), expected, rtol=1e-9, atol=1e-12)


def test_the_measured_tasks_have_the_shapes_that_they_name():
    for task in (*models_tasks.TASKS.values(), *models_tasks.SMALL_TASKS.values()):
        model = task.model()
        x = jax.ShapeDtypeStruct(task.x, np.float32)
        y, _ = jax.eval_shape(lambda x, m=model: m.init_with_output(jax.random.key(0), x), x)
        assert y.shape == task.y
        assert y.dtype == task.dtype


def weights_of(task: models_tasks.Task) -> list[Any]:
    """The shapes of each layer's weights, in the order of the calls."""
    model, x = task.model(), jax.ShapeDtypeStruct(task.x, np.float32)
    weights = jax.eval_shape(model.init, jax.random.key(0), x)
    return models_flax_layers.weights_in_order(model, weights, x)


def count(weights: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(weights))


@pytest.mark.parametrize(
    ("name", "exact", "paper"),
    [
        ("ResNet-50", 25_557_032, None),
        ("ConvNeXt-T", 28_589_128, 28.6),
        ("MobileNetV3-Large", 5_483_032, 5.4),
        ("EfficientNet-B0", 5_288_548, 5.3),
    ],
)
def test_a_published_network_has_its_parameters(name: str, exact: int, paper: float | None):
    """As many as torchvision's documentation says, and as the network's paper says in millions."""
    found = count(weights_of(models_tasks.TASKS[f"{name}, bfloat16"]))
    assert found == exact
    assert paper is None or abs(found / 1e6 - paper) < 0.1


def test_four_stages_of_replknet_have_the_parameters_of_the_whole():
    """79 million in the paper, where the stem, what is between the stages, and the last layer have few."""
    widths, kernels, blocks = (128, 256, 512, 1024), (31, 29, 27, 13), (2, 2, 18, 2)
    found = count(weights_of(models_tasks.TASKS["RepLKNet-31 stage, bfloat16"]))
    assert found == count(weights_of(models_tasks.replknet(1, 7, 128, 2, 31, "float32")))
    found = sum(
        count(weights_of(models_tasks.replknet(1, 7, width, number, kernel, "float32")))
        for width, number, kernel in zip(widths, blocks, kernels, strict=True)
    )
    norm = 2
    found += 128 * (9 * 3 + norm + 9 + norm + 128 + norm + 9 + norm)
    found += sum(wide * (wide // 2 + norm + 9 + norm) for wide in widths[1:])
    found += 1024 * norm + 1024 * 1000 + 1000
    assert abs(found / 1e6 - 79) < 1


@pytest.mark.pytorch
@pytest.mark.parametrize("name", list(models_tasks.TASKS))
def test_a_measured_model_has_the_same_layers_in_both_libraries(name: str):
    import torch

    task = models_tasks.TASKS[name]
    with torch.device("meta"):
        layers = list(task.torch_model().layers())
    sizes = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in layers]
    assert sizes == [count(weights) for weights in weights_of(task)]


@pytest.mark.parametrize("name", list(TINY))
def test_every_convolution_and_resize_is_explained(name: str):
    problem = models.Problem.make(TINY[name])
    step, init = models.flax_step(problem.task)
    arguments = problem.weights, init(problem.weights), problem.x, problem.y
    rows = jax_convgrad.explain(step, *arguments).rows
    jax_convgrad.install()
    counted = equations_of(step, *arguments)
    assert Counter(row.primitive for row in rows) == counted
    assert all(row.used for row in rows)
    # Each layer is one, and has two gradients. A dense layer is none, and a first layer has one gradient.
    weights = models_flax_layers.weights_in_order(problem.task.model(), problem.weights, problem.x)
    convolutions = ["kernel" in layer and layer["kernel"].ndim > 2 for layer in weights]
    assert sum(counted.values()) - counted["resample"] == 3 * sum(convolutions) - convolutions[0]
    assert counted["resample"] == 2 * (name == "segmenter")


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    compiled: list[Any] = []
    monkeypatch.setattr(models_tasks, "SMALL_TASKS", {k: TINY[k] for k in ("unet2", "generator")})
    monkeypatch.setattr(models, "SAMPLE_SECONDS", 1e-6)
    monkeypatch.setattr(models, "compile_in_process", lambda *a: compiled.append(a) or 1.5)
    files = tmp_path / "a.md", tmp_path / "a.json"
    with jax.enable_x64(False):
        options = "--small --rounds 2 --models unet --compiles 1 --markdown {} --json {}"
        models.main(options.format(*files).split())
    assert compiled == [("unet2", True, False), ("unet2", True, True)]
    data = json.loads(files[1].read_text())
    rows = {row["by"]: row for row in data["rows"]}
    assert {models.FLAX, models.INSTALL, models.PURE} <= rows.keys()
    for row in rows.values():
        assert len(row["samples"]) == 2 and row["seconds"] > 0
        assert len(row["losses"]) == models.STEPS_COMPARED
        assert row["losses"][-1] < row["losses"][0]  # it trains
        assert row["differ"] < 1e-4
    # 13 convolutions, each with two gradients except the image's.
    found = data["models"]["unet2"]
    assert found["explained"]["rows"] == 3 * 13 - 1
    assert found["compile"] == [1.5, 1.5]
    text = files[0].read_text()
    assert capsys.readouterr().out == text + "\n"
    (line,) = (line for line in text.splitlines() if line.startswith("| unet2 |"))
    assert line.split(" | ")[1] == models._milliseconds(rows[models.FLAX]["seconds"])
    assert "1.50, 1.50" in line
    assert jax_convgrad.installed() == ()


def test_what_a_step_takes_at_least(monkeypatch: pytest.MonkeyPatch):
    """By the backend that is chosen: XLA's time where XLA keeps the convolution."""
    explain, operations = jax_convgrad.explain, []

    def timed(*args: Any, measure: bool) -> Any:
        assert measure
        found = explain(*args)
        operations.extend(row.roofline.operations for row in found.rows)
        rows = tuple(
            dataclasses.replace(row, seconds=1.0, xla_seconds=100.0, ours=i % 3 > 0)
            for i, row in enumerate(found.rows)
        )
        return dataclasses.replace(found, rows=rows)

    monkeypatch.setattr(jax_convgrad, "explain", timed)
    found = models.explained(TINY["generator"], alone=True)
    kept = -(-found["rows"] // 3)
    assert found["ours"] == found["rows"] - kept > 0
    assert found["seconds"] == found["ours"] + 100 * kept
    assert found["operations"] == sum(operations) > 0


@pytest.mark.skipif(
    jax.version.__version_info__ < (0, 11), reason="its XLA does not know the option CONVOLUTION"
)
def test_the_loops_are_what_they_say(monkeypatch: pytest.MonkeyPatch):
    """The step is compiled with install() or without it, captured or not, in any order."""
    problem = models.Problem.make(TINY["generator"])
    seen: list[tuple[tuple[str, ...], Any]] = []
    jit = jax.jit

    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__name__ == "step":
            seen.append((jax_convgrad.installed(), kwargs["compiler_options"]))
        return jit(function, *args, **kwargs)

    monkeypatch.setattr(jax, "jit", watched)
    wanted = ((True, False), (False, True), (True, True), (False, False))
    names = [models.flax_contender(problem, *how).name for how in wanted]
    assert names == [
        models.INSTALL,
        models.FLAX_CAPTURED,
        models.INSTALL_CAPTURED,
        models.FLAX,
    ]
    both = ("cpu", "cuda")
    assert seen == [(both, None), ((), models.CAPTURE), (both, models.CAPTURE), ((), None)]
    assert jax_convgrad.installed() == ()


def test_pure_jax_has_no_handler_in_it(monkeypatch: pytest.MonkeyPatch):
    """Its program calls nothing of this package, and install()'s does where there are handlers."""
    problem = models.Problem.make(TINY["unet2"])
    programs: dict[str, str] = {}
    compile_ = jax.stages.Lowered.compile

    def watched(lowered: Any, *args: Any, **kwargs: Any) -> Any:
        programs["last"] = lowered.as_text()
        return compile_(lowered, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", watched)
    pure = [make for make in models.contenders(problem) if len(make.args) == 4]
    assert [make().name for make in pure] == [models.PURE]
    assert "jax_convgrad" not in programs["last"].replace("jax_convgrad.py", "")
    assert "stablehlo.convolution" in programs["last"]
    if jax_convgrad.info()["handlers"]["cpu"]["available"]:
        assert models.flax_contender(problem, True, False).name == models.INSTALL
        assert "@jax_convgrad_conv_wgrad" in programs["last"]


def test_a_contender_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch):
    def broken(problem: Any, channels_last: bool) -> Any:
        raise RuntimeError("no such engine\nand more")

    monkeypatch.setattr(models, "has_torch", lambda: True)
    monkeypatch.setattr(models, "torch_contender", broken)
    monkeypatch.setattr(models, "SAMPLE_SECONDS", 1e-6)
    with jax.enable_x64(False):
        rows = models.measure("generator", TINY["generator"], 1, 1.0)
    failed = [row for row in rows if "failure" in row]
    assert {row["failure"] for row in failed} == {"RuntimeError: no such engine"}
    result = {
        "small": True,
        "device": "x",
        "versions": {},
        "rows": rows,
        "models": {"generator": {"compile": [], "explained": {"rows": 14, "ours": 9}}},
    }
    text = models.report(result)
    assert text.count("failed: RuntimeError: no such engine") == 2
    assert "| - | 14, 9 | - |" in text
    result["models"]["generator"]["explained"] |= {"seconds": 0.00318, "operations": 161e6}
    assert "| - | 14, 9 | 3.18, 0.161 |" in models.report(result)

"""Trains a small convolutional decoder for 2x super-resolution on real photographs.

    python examples/train_superres.py --quick     # under a minute on two cores
    python examples/train_superres.py             # some minutes, sharper
    python examples/train_superres.py --up resize # enlarges with resize and convolution
    python examples/train_superres.py --devices 4 # every batch divided among four devices

The two photographs ship with scikit-learn. A strip of each is held out: the network
never sees it, and the numbers and the picture at the end are of that strip alone. The network adds
its output to the bicubic enlargement, so it has to learn what bicubic interpolation loses.

The model is written once, with three functions: `conv_general_dilated`, `conv_transpose` and
`resize`. They come from `jax_convgrad` for training, and from `jax.lax` and `jax.image` for the
comparison of step times. Nothing else differs. training.py has these functions and Adam, data_parallel.py
the code for several devices.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from data_parallel import DataParallel, add_arguments
from pictures import draw_losses, new_figure
from training import (
    DIMENSIONS,
    LAYERS,
    Adam,
    Layers,
    Params,
    Step,
    add_options,
    compare_steps,
    describe_times,
    init_adam,
    last_gradient,
    make_deterministic,
    require,
    update_adam,
)

import jax_convgrad

SCALE = 2
HELD_OUT = slice(256, 352)  # columns of both photographs
EVAL_SIZE = 96
PHOTOGRAPHS = ("china.jpg", "flower.jpg")

Model = Callable[[Params, jax.Array], jax.Array]


# --- Data ----------------------------------------------------------------------------------------


class Region(NamedTuple):
    """A part of a photograph and its half-sized copy, RGB in [0, 1]."""

    high: np.ndarray
    low: np.ndarray


def shrink(high: np.ndarray) -> np.ndarray:
    """Half the size, antialiased, and rounded to the 256 levels of an image file."""
    height, width, channels = high.shape
    shape = (height // SCALE, width // SCALE, channels)
    low = jax.image.resize(high, shape, method="cubic", antialias=True)
    return np.asarray(jnp.round(jnp.clip(low, 0, 1) * 255) / 255)


def enlarge(low: jax.Array) -> jax.Array:
    """Bicubic interpolation to twice the size: what the network has to beat."""
    n, height, width, channels = low.shape
    return jax.image.resize(low, (n, height * SCALE, width * SCALE, channels), method="cubic")


def load_photographs() -> tuple[list[Region], Region]:
    """The training regions, and the held-out patches as one batch.

    The strip is cut out before anything is downsampled, so none of its pixels leaks into training.
    """
    from sklearn.datasets import load_sample_image

    training, patches = [], []
    for name in PHOTOGRAPHS:
        photograph = load_sample_image(name).astype(np.float32) / 255
        rows = photograph.shape[0] // SCALE * SCALE
        photograph = photograph[:rows]
        for columns in (slice(0, HELD_OUT.start), slice(HELD_OUT.stop, None)):
            high = photograph[:, columns]
            training.append(Region(high, shrink(high)))
        strip = photograph[:, HELD_OUT]
        for top in range(rows % EVAL_SIZE, rows, EVAL_SIZE):
            patches.append(strip[top : top + EVAL_SIZE])
    high = np.stack(patches)
    return training, Region(high, np.stack([shrink(patch) for patch in high]))


def batches(
    regions: list[Region], size: int, patch: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless batches of random patches, randomly rotated and mirrored: (low, high)."""
    areas = np.array([region.low.shape[0] * region.low.shape[1] for region in regions], np.float64)
    while True:
        lows, highs = [], []
        for index in rng.choice(len(regions), size, p=areas / areas.sum()):
            region = regions[index]
            top = rng.integers(region.low.shape[0] - patch + 1)
            left = rng.integers(region.low.shape[1] - patch + 1)
            low = region.low[top : top + patch, left : left + patch]
            top, left, side = top * SCALE, left * SCALE, patch * SCALE
            high = region.high[top : top + side, left : left + side]
            turns, mirror = int(rng.integers(4)), rng.integers(2)
            low, high = (np.rot90(image, turns) for image in (low, high))
            lows.append(low[:, ::-1] if mirror else low)
            highs.append(high[:, ::-1] if mirror else high)
        yield np.stack(lows), np.stack(highs)


# --- Model ---------------------------------------------------------------------------------------


def init_params(rng: np.random.Generator, body: str, up: str, blocks: int, width: int) -> Params:
    """He-normal weights and zero biases."""
    params: dict[str, np.ndarray] = {}

    def layer(name: str, size: int, inputs: int, outputs: int, gain: float = 1.0) -> None:
        shape = (size, size, inputs, outputs)
        deviation = gain * math.sqrt(2 / (size * size * inputs))
        params[f"{name}_w"] = rng.normal(0, deviation, shape).astype(np.float32)
        params[f"{name}_b"] = np.zeros(outputs, np.float32)

    layer("head", 3, 3, width)
    for index in range(blocks):
        if body == "depthwise":
            layer(f"block{index}_spatial", 7, 1, width)
            layer(f"block{index}_wide", 1, width, 2 * width)
            layer(f"block{index}_narrow", 1, 2 * width, width, gain=0.1)
        else:
            layer(f"block{index}_first", 3, width, width)
            layer(f"block{index}_second", 3, width, width, gain=0.1)
    if up == "resize":
        layer("up", 3, width, width)
    else:
        # Each output pixel of a 4x4 kernel with stride 2 is reached by 2x2 of its taps.
        layer("up", 4, width, width, gain=2.0)
    layer("tail", 3, width, 3, gain=0.05)
    return {name: jnp.asarray(value) for name, value in params.items()}


def make_model(layers: Layers, body: str, up: str, blocks: int) -> Model:
    """The network, built from `layers`.

    `plain` blocks are EDSR's: two 3x3 convolutions and a shortcut. `depthwise` blocks are
    ConvNeXt's: a 7x7 depthwise convolution, then two 1x1 convolutions. After the
    blocks the features are enlarged with a transposed convolution or, with ``up`` "resize", with a linear
    resize and a 3x3 convolution.
    """

    def conv(params: Params, name: str, x: jax.Array, groups: int = 1) -> jax.Array:
        y = layers.conv_general_dilated(
            x,
            params[f"{name}_w"],
            (1, 1),
            "SAME",
            dimension_numbers=DIMENSIONS,
            feature_group_count=groups,
        )
        return y + params[f"{name}_b"]

    def enlarge_features(params: Params, x: jax.Array) -> jax.Array:
        if up == "resize":
            n, height, width, channels = x.shape
            shape = (n, height * SCALE, width * SCALE, channels)
            return conv(params, "up", layers.resize(x, shape, "linear"))
        y = layers.conv_transpose(
            x, params["up_w"], (SCALE, SCALE), "SAME", dimension_numbers=DIMENSIONS
        )
        return y + params["up_b"]

    def block(params: Params, name: str, x: jax.Array) -> jax.Array:
        if body == "depthwise":
            y = conv(params, f"{name}_spatial", x, groups=x.shape[-1])
            y = jax.nn.relu(conv(params, f"{name}_wide", y))
            return x + conv(params, f"{name}_narrow", y)
        y = jax.nn.relu(conv(params, f"{name}_first", x))
        return x + conv(params, f"{name}_second", y)

    def model(params: Params, low: jax.Array) -> jax.Array:
        x = conv(params, "head", low - 0.5)
        for index in range(blocks):
            x = block(params, f"block{index}", x)
        x = jax.nn.relu(enlarge_features(params, x))
        return enlarge(low) + conv(params, "tail", x)

    return model


# --- Training ------------------------------------------------------------------------------------


def make_step(model: Model, rate: float, steps: int) -> Step:
    """One step of Adam on the mean absolute error; the learning rate falls along a cosine."""

    def loss_of(params: Params, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.mean(jnp.abs(model(params, low) - high))

    def step(state: Adam, low: jax.Array, high: jax.Array) -> tuple[Adam, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(state.params, low, high)
        count = state.step + 1
        progress = jnp.minimum(count / steps, 1.0)
        now = rate * (0.02 + 0.98 * 0.5 * (1 + jnp.cos(jnp.pi * progress)))
        return update_adam(state, gradients, now * jnp.minimum(count / 20, 1.0)), loss

    return step


def train(
    step: Step,
    state: Adam,
    data: Iterator[tuple[np.ndarray, np.ndarray]],
    steps: int,
    parallel: DataParallel,
) -> tuple[Adam, list[float], list[float]]:
    """Trains with a progress bar. Returns the losses, and bicubic's errors on the same patches."""
    from tqdm import tqdm

    bicubic_error = jax.jit(lambda low, high: jnp.mean(jnp.abs(enlarge(low) - high)))
    losses, baseline = [], []
    options = {"dynamic_ncols": True, "disable": not parallel.leads}
    with tqdm(total=steps, unit="step", desc="training", **options) as bar:
        for index in range(steps):
            low, high = next(data)
            state, loss = step(state, *parallel.divide(low, high))
            losses.append(float(loss))
            baseline.append(float(bicubic_error(low, high)))
            if (index + 1) % 10 == 0 or index + 1 == steps:
                bar.set_postfix_str(
                    f"loss {statistics.fmean(losses[-50:]):.5f} "
                    f"(bicubic {statistics.fmean(baseline[-50:]):.5f})",
                    refresh=False,
                )
            bar.update()
    return state, losses, baseline


# --- Evaluation ----------------------------------------------------------------------------------


def psnr(image: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio of each image of a batch, in decibels."""
    error = np.mean(np.square(np.clip(image, 0, 1) - target, dtype=np.float64), axis=(1, 2, 3))
    return -10 * np.log10(np.maximum(error, 1e-12))


def draw(
    path: pathlib.Path, bicubic: np.ndarray, result: np.ndarray, target: np.ndarray, rows: int
) -> None:
    """Input, result and target side by side, for the patches that are hardest to enlarge."""
    before, after = psnr(bicubic, target), psnr(result, target)
    hardest = np.argsort(before)[:rows]
    figure = new_figure(10.5, 3.65 * len(hardest) + 0.6)
    axes = figure.subplots(len(hardest), 3, squeeze=False)
    for row, index in zip(axes, hardest, strict=True):
        columns = (
            (f"input, enlarged: {before[index]:.2f} dB", bicubic),
            (f"result: {after[index]:.2f} dB ({after[index] - before[index]:+.2f})", result),
            ("target", target),
        )
        for axis, (title, images) in zip(row, columns, strict=True):
            axis.imshow(np.clip(images[index], 0, 1), interpolation="nearest")
            axis.set_title(title, fontsize=12)
            axis.axis("off")
    figure.suptitle("2x super-resolution of patches that the network never saw", fontsize=14)
    figure.savefig(path, dpi=100)


# --- Main ----------------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a run of under a minute")
    parser.add_argument("--steps", type=int, help="training steps (3000, or 250 with --quick)")
    parser.add_argument("--batch", type=int, default=16, help="patches per step (16)")
    parser.add_argument(
        "--patch", type=int, default=24, help="side of the low-resolution patches (24)"
    )
    parser.add_argument("--width", type=int, default=32, help="channels (32)")
    parser.add_argument("--blocks", type=int, default=4, help="residual blocks (4)")
    parser.add_argument(
        "--body", choices=("plain", "depthwise"), default="plain", help="kind of residual block"
    )
    parser.add_argument(
        "--up",
        choices=("conv_transpose", "resize"),
        default="conv_transpose",
        help="how the features are enlarged (conv_transpose)",
    )
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (0.002)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and patches (0)")
    add_options(parser)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.steps is None:
        arguments.steps = 250 if arguments.quick else 3000
    if arguments.rounds is None:
        arguments.rounds = 7 if arguments.quick else 15
    if (
        min(arguments.steps, arguments.rounds, arguments.batch, arguments.width, arguments.blocks)
        < 1
    ):
        parser.error("--steps, --rounds, --batch, --width and --blocks must be at least 1")
    if not 4 <= arguments.patch <= 100:
        parser.error("--patch must be between 4 and 100")
    if arguments.seed < 0:
        parser.error("--seed must be at least 0")
    return arguments


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, compares and reports. Returns the figures."""
    arguments = parse_arguments(argv)
    jax_convgrad.uninstall()  # it may be on from the environment; "lax" must be plain lax
    require("sklearn", "matplotlib", "tqdm")
    if arguments.deterministic:
        make_deterministic()
    parallel = DataParallel.start(arguments)
    started = time.perf_counter()
    rng = np.random.default_rng(arguments.seed)
    training, held_out = load_photographs()
    data = batches(training, arguments.batch, arguments.patch, rng)

    names = ("ours", "lax") if arguments.layers == "both" else (arguments.layers,)
    models, steppers = {}, {}
    for layers in (LAYERS[name] for name in names):
        models[layers.name] = make_model(layers, arguments.body, arguments.up, arguments.blocks)
        step = make_step(models[layers.name], arguments.rate, arguments.steps)
        steppers[layers.name] = parallel.jit(step)
    trained_with = LAYERS[names[0]].name

    params = init_params(rng, arguments.body, arguments.up, arguments.blocks, arguments.width)
    if parallel.leads:
        describe(arguments, params, trained_with, parallel)
    state = parallel.replicate(init_adam(params))
    state, losses, baseline = train(steppers[trained_with], state, data, arguments.steps, parallel)
    batch = parallel.divide(*next(data))
    times, difference = compare_steps(
        steppers, state, batch, arguments.rounds, last_gradient, parallel
    )
    if not parallel.leads:
        return {}

    low = jnp.asarray(held_out.low)
    bicubic = np.asarray(enlarge(low))
    result = np.asarray(jax.jit(models[trained_with])(jax.device_get(state.params), low))
    before, after = psnr(bicubic, held_out.high), psnr(result, held_out.high)
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "superres.png"
    draw(picture, bicubic, result, held_out.high, rows=4)
    # Relative to bicubic's error on the same patches, because some patches are harder than others.
    relative = [loss / other for loss, other in zip(losses, baseline, strict=True)]
    title = "Error of the network over that of bicubic enlargement"
    draw_losses(arguments.out / "superres_losses.png", title, {"network / bicubic": relative})

    window = max(1, min(50, arguments.steps // 4))
    mean = statistics.fmean
    summary = {
        "steps": arguments.steps,
        "layers": trained_with,
        "body": arguments.body,
        "up": arguments.up,
        "loss_first": mean(losses[:window]),
        "loss_last": mean(losses[-window:]),
        "bicubic_loss_first": mean(baseline[:window]),
        "bicubic_loss_last": mean(baseline[-window:]),
        "psnr_bicubic": float(before.mean()),
        "psnr_model": float(after.mean()),
        "psnr_gain": float((after - before).mean()),
        "held_out_patches": len(before),
        "held_out_patches_better": int((after > before).sum()),
        "step_seconds": times,
        "step_rounds": arguments.rounds,
        "device": jax.devices()[0].device_kind,
        "devices": parallel.count,
        "processes": jax.process_count(),
        "gradient_difference": difference,
        "seconds": time.perf_counter() - started,
        "picture": str(picture),
    }
    (arguments.out / "losses.json").write_text(json.dumps(losses) + "\n")
    (arguments.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    report(summary)
    return summary


def describe(
    arguments: argparse.Namespace, params: Params, layers: str, parallel: DataParallel
) -> None:
    """Prints what is about to be trained."""
    count = sum(value.size for value in params.values())
    low, high = arguments.patch, arguments.patch * SCALE
    print(
        f"{count:,} parameters, {arguments.blocks} {arguments.body} blocks of {arguments.width} "
        f"channels, enlarged by {arguments.up}; batches of {arguments.batch} patches, "
        f"{low}x{low} to {high}x{high}; layers of {layers}{parallel.describe()}"
    )


def report(summary: dict[str, Any]) -> None:
    """Prints the figures, the speed first."""
    print(
        describe_times(
            summary["step_seconds"], summary["step_rounds"], summary["gradient_difference"]
        )
    )
    print(
        f"loss (mean absolute error): {summary['loss_first']:.5f} at first, "
        f"{summary['loss_last']:.5f} at the end; bicubic on the same patches "
        f"{summary['bicubic_loss_first']:.5f} and {summary['bicubic_loss_last']:.5f}"
    )
    print(
        f"held-out PSNR: bicubic {summary['psnr_bicubic']:.2f} dB, "
        f"network {summary['psnr_model']:.2f} dB ({summary['psnr_gain']:+.2f}), better on "
        f"{summary['held_out_patches_better']} of {summary['held_out_patches']} patches"
    )
    print(
        f"wrote {summary['picture']}, superres_losses.png, summary.json and losses.json; "
        f"{summary['seconds']:.0f} s in all"
    )


if __name__ == "__main__":
    main()

"""Trains a small DCGAN on handwritten digits, with second derivatives in both of its networks.

    python examples/train_gan.py --quick      # about half a minute on two cores
    python examples/train_gan.py              # some minutes, better digits
    python examples/train_gan.py --devices 4  # every batch divided among four devices

The digits ship with scikit-learn and are enlarged; a fifth of them is held out. The generator
is a stack of transposed convolutions, the discriminator one of strided convolutions (DCGAN: Radford,
Metz and Chintala 2016). Both losses contain the gradient of a network with respect to its input, so
training differentiates each network twice:

- R1 (Mescheder, Geiger and Nowozin 2018) keeps the discriminator's slope at real pictures small;
- the path length penalty (Karras et al. 2020, with the batch's mean length) keeps the
  generator's slope the same everywhere.

The result is measured on the held-out digits before and after training, as the squared maximum mean
discrepancy (Gretton et al. 2012, unbiased) with the cubic kernel of the Kernel Inception Distance
(Binkowski et al. 2018), on pixels instead of a network's features. It is zero, up to chance, for
pictures from the same distribution.

As in train_superres.py, the model is written once, and runs with the layers of jax_convgrad or of plain lax.
"""

from __future__ import annotations

import argparse
import itertools
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
from pictures import draw_losses, draw_rows
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

FIRST = 4  # side of the smallest feature maps
LATENT = 32
BETAS = (0.5, 0.99)
AVERAGE = 0.995  # decay of the running average of the weights that samples are made from
COLUMNS = 16  # samples in one row of the picture

Network = Callable[[Params, jax.Array], jax.Array]
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]  # real pictures, latents, noise


# --- Data ----------------------------------------------------------------------------------------


def load_digits(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Training digits and held-out digits: size x size x 1, in [-1, 1]."""
    from sklearn import datasets

    small = datasets.load_digits().images.astype(np.float32)[..., None] / 8 - 1
    large = jax.image.resize(small, (len(small), size, size, 1), method="cubic")
    images = rng.permutation(np.clip(np.asarray(large), -1, 1))
    held_out = len(images) // 5
    return images[held_out:], images[:held_out]


def batches(images: np.ndarray, size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Endless batches of random digits, latents, and noise of the digits' shape."""
    while True:
        real = images[rng.integers(len(images), size=size)]
        latent = rng.standard_normal((size, LATENT), np.float32)
        yield real, latent, rng.standard_normal(real.shape, np.float32)


# --- Networks ------------------------------------------------------------------------------------


def channels(size: int, width: int) -> list[int]:
    """Channels of the feature maps, from the smallest to the image: twice as many for half the side."""
    levels = int(math.log2(size // FIRST))
    return [width * 2**level for level in reversed(range(levels))] + [1]


def init_params(rng: np.random.Generator, size: int, width: int) -> tuple[Params, Params]:
    """He-normal weights and zero biases of the generator and the discriminator."""

    def layer(params: dict[str, np.ndarray], name: str, shape: tuple[int, ...], reach: int) -> None:
        deviation = math.sqrt(2 / reach)
        params[f"{name}_w"] = rng.normal(0, deviation, shape).astype(np.float32)
        params[f"{name}_b"] = np.zeros(shape[-1], np.float32)

    generator: dict[str, np.ndarray] = {}
    discriminator: dict[str, np.ndarray] = {}
    counts = channels(size, width)
    flat = FIRST * FIRST * counts[0]
    layer(generator, "dense", (LATENT, flat), LATENT)
    layer(discriminator, "dense", (flat, 1), flat)
    for index, (deep, shallow) in enumerate(itertools.pairwise(counts)):
        # Each output pixel of a 4x4 kernel with stride 2 is reached by 2x2 of its taps.
        layer(generator, f"up{index}", (4, 4, deep, shallow), 4 * deep)
        layer(discriminator, f"down{index}", (4, 4, shallow, deep), 16 * shallow)
    return tuple(
        {name: jnp.asarray(value) for name, value in params.items()}
        for params in (generator, discriminator)
    )


def make_networks(layers: Layers, size: int) -> tuple[Network, Network]:
    """The generator, from latents to images, and the discriminator, from images to scores."""
    levels = range(int(math.log2(size // FIRST)))

    def generator(params: Params, latent: jax.Array) -> jax.Array:
        x = latent @ params["dense_w"] + params["dense_b"]
        x = x.reshape(len(x), FIRST, FIRST, -1)
        for index in levels:
            x = layers.conv_transpose(
                jax.nn.relu(x), params[f"up{index}_w"], (2, 2), "SAME", dimension_numbers=DIMENSIONS
            )
            x = x + params[f"up{index}_b"]
        return jnp.tanh(x)

    def discriminator(params: Params, image: jax.Array) -> jax.Array:
        x = image
        for index in reversed(levels):
            x = layers.conv_general_dilated(
                x, params[f"down{index}_w"], (2, 2), "SAME", dimension_numbers=DIMENSIONS
            )
            x = jax.nn.leaky_relu(x + params[f"down{index}_b"], 0.2)
        return (x.reshape(len(x), -1) @ params["dense_w"] + params["dense_b"])[:, 0]

    return generator, discriminator


# --- Training step -------------------------------------------------------------------------------


class State(NamedTuple):
    """The state of both networks, and the running average of the generator's weights."""

    generator: Adam
    discriminator: Adam
    average: Params


def init_state(generator: Params, discriminator: Params) -> State:
    """The state before the first step."""
    return State(init_adam(generator), init_adam(discriminator), generator)


class Weights(NamedTuple):
    """The weights of the penalties."""

    r1: float
    path: float


def squared_slopes(network: Network, params: Params, x: jax.Array, direction: Any) -> jax.Array:
    """Squared length, for each example, of the gradient of <direction, network(x)> with respect to x."""
    slope = jax.grad(lambda x: jnp.vdot(network(params, x), direction))(x)
    return jnp.sum(slope**2, axis=tuple(range(1, x.ndim)))


def make_step(networks: tuple[Network, Network], rate: float, weights: Weights) -> Step:
    """One step of Adam for both networks, from gradients taken at the same parameters."""
    generator, discriminator = networks

    def of_discriminator(
        params: Params, real: jax.Array, made: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        softplus = jax.nn.softplus
        loss = jnp.mean(softplus(-discriminator(params, real)))
        loss += jnp.mean(softplus(discriminator(params, made)))
        r1 = jnp.mean(squared_slopes(discriminator, params, real, jnp.ones(len(real), real.dtype)))
        return loss + weights.r1 / 2 * r1, {"discriminator": loss, "r1": r1}

    def of_generator(
        params: Params, judge: Params, latent: jax.Array, noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        made = generator(params, latent)
        loss = jnp.mean(jax.nn.softplus(-discriminator(judge, made)))
        scale = 1 / math.sqrt(math.prod(noise.shape[1:]))
        squares = squared_slopes(generator, params, latent, scale * noise)
        lengths = jnp.sqrt(squares + 1e-12)
        path = jnp.mean((lengths - jax.lax.stop_gradient(jnp.mean(lengths))) ** 2)
        return loss + weights.path * path, {"generator": loss, "path": path}

    def step(state: State, real: jax.Array, latent: jax.Array, noise: jax.Array) -> Any:
        maker, judge = state.generator, state.discriminator
        made = generator(maker.params, latent)
        of_judge, losses = jax.grad(of_discriminator, has_aux=True)(judge.params, real, made)
        of_maker, more = jax.grad(of_generator, has_aux=True)(
            maker.params, judge.params, latent, noise
        )
        maker = update_adam(maker, of_maker, rate, BETAS)
        judge = update_adam(judge, of_judge, rate, BETAS)
        # Over few steps at first, so that the initial weights are forgotten soon.
        keep = jnp.minimum(AVERAGE, maker.step / (maker.step + 9))
        average = jax.tree.map(
            lambda old, new: keep * old + (1 - keep) * new, state.average, maker.params
        )
        return State(maker, judge, average), {**losses, **more}

    return step


def last_gradients(before: State, after: State) -> jax.Array:
    """The gradients of both networks, flat; each scaled to norm 1."""
    pairs = zip(before[:2], after[:2], strict=True)
    found = [last_gradient(old, new, BETAS[0]) for old, new in pairs]
    return jnp.concatenate([part / jnp.linalg.norm(part) for part in found])


# --- Training ------------------------------------------------------------------------------------


class Samples:
    """Pictures of the same latents during training, one row for each moment."""

    def __init__(self, path: pathlib.Path, generate: Network, latent: np.ndarray) -> None:
        self.path, self.generate, self.latent = path, generate, latent
        self.rows: dict[str, np.ndarray] = {}

    def add(self, step: int, average: Params) -> None:
        """Adds a row and writes the picture again."""
        images = np.asarray(self.generate(jax.device_get(average), self.latent))
        self.append(f"step {step}", images)

    def append(self, label: str, images: np.ndarray) -> None:
        """Writes the picture with one more row."""
        self.rows[label] = images[..., 0]
        draw_rows(self.path, "Samples during training, and real digits", self.rows)


def train(
    step: Step,
    state: State,
    data: Iterator[Batch],
    steps: int,
    parallel: DataParallel,
    samples: Samples | None,
) -> tuple[State, dict[str, list[float]]]:
    """Trains with a progress bar, and adds eight rows of samples. Returns the losses, by name."""
    from tqdm import tqdm

    history: dict[str, list[float]] = {}
    moments = {round(steps * part / 8) for part in range(1, 9)}
    options = {"dynamic_ncols": True, "disable": not parallel.leads}
    with tqdm(total=steps, unit="step", desc="training", **options) as bar:
        for index in range(1, steps + 1):
            state, losses = step(state, *parallel.divide(*next(data)))
            for name, value in jax.device_get(losses).items():
                history.setdefault(name, []).append(float(value))
            if index % 10 == 0 or index == steps:
                latest = {name: statistics.fmean(h[-50:]) for name, h in history.items()}
                bar.set_postfix_str(
                    ", ".join(f"{name} {value:.3f}" for name, value in latest.items()),
                    refresh=False,
                )
            if samples is not None and index in moments:
                samples.add(index, state.average)
            bar.update()
    return state, history


# --- Evaluation ----------------------------------------------------------------------------------


def kernel_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy, kernel (<a, b> / size + 1)**3."""
    a, b = (images.reshape(len(images), -1).astype(np.float64) for images in (first, second))

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a @ b.T / a.shape[1] + 1) ** 3

    def within(a: np.ndarray) -> float:
        """The mean over pairs of different images."""
        values = kernel(a, a)
        return (values.sum() - np.trace(values)) / (len(a) * (len(a) - 1))

    return float(within(a) + within(b) - 2 * kernel(a, b).mean())


# --- Main ----------------------------------------------------------------------------------------


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a run of about half a minute")
    parser.add_argument("--steps", type=int, help="training steps (2000, or 400 with --quick)")
    parser.add_argument("--batch", type=int, default=64, help="digits per step (64)")
    parser.add_argument(
        "--size", type=int, default=16, choices=(8, 16, 32), help="side of the images (16)"
    )
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (32)")
    parser.add_argument("--r1", type=float, default=1.0, help="weight of the R1 penalty (1)")
    parser.add_argument(
        "--path", type=float, default=1.0, help="weight of the path length penalty (1)"
    )
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (0.001)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches (0)")
    add_options(parser)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.steps is None:
        arguments.steps = 400 if arguments.quick else 2000
    if arguments.rounds is None:
        arguments.rounds = 7 if arguments.quick else 15
    if min(arguments.steps, arguments.rounds, arguments.batch, arguments.width) < 1:
        parser.error("--steps, --rounds, --batch and --width must be at least 1")
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
    training, held_out = load_digits(arguments.size, rng)
    data = batches(training, arguments.batch, rng)

    names = ("ours", "lax") if arguments.layers == "both" else (arguments.layers,)
    weights = Weights(arguments.r1, arguments.path)
    networks, steppers = {}, {}
    for layers in (LAYERS[name] for name in names):
        networks[layers.name] = make_networks(layers, arguments.size)
        steppers[layers.name] = parallel.jit(
            make_step(networks[layers.name], arguments.rate, weights)
        )
    trained_with = LAYERS[names[0]].name
    params = init_params(rng, arguments.size, arguments.width)
    latent = rng.standard_normal((len(held_out), LATENT), np.float32)
    generate = jax.jit(networks[trained_with][0])

    def distance(average: Params) -> float:
        return kernel_distance(held_out, np.asarray(generate(jax.device_get(average), latent)))

    samples = None
    if parallel.leads:
        describe(arguments, params, trained_with, parallel)
        arguments.out.mkdir(parents=True, exist_ok=True)
        samples = Samples(arguments.out / "gan.png", generate, latent[:COLUMNS])
        samples.add(0, params[0])
    state = parallel.replicate(init_state(*params))
    state, history = train(steppers[trained_with], state, data, arguments.steps, parallel, samples)
    batch = parallel.divide(*next(data))
    times, difference = compare_steps(
        steppers, state, batch, arguments.rounds, last_gradients, parallel
    )
    if samples is None:
        return {}

    samples.append("real digits", held_out[:COLUMNS])
    draw_losses(arguments.out / "gan_losses.png", "Losses and penalties", history)
    window = max(1, min(50, arguments.steps // 4))
    mean = statistics.fmean
    summary = {
        "steps": arguments.steps,
        "layers": trained_with,
        **{f"{name}_first": mean(values[:window]) for name, values in history.items()},
        **{f"{name}_last": mean(values[-window:]) for name, values in history.items()},
        "distance_first": distance(params[0]),
        "distance_last": distance(state.average),
        "distance_real": kernel_distance(held_out, training[: len(held_out)]),
        "step_seconds": times,
        "step_rounds": arguments.rounds,
        "device": jax.devices()[0].device_kind,
        "devices": parallel.count,
        "processes": jax.process_count(),
        "gradient_difference": difference,
        "seconds": time.perf_counter() - started,
        "picture": str(samples.path),
    }
    (arguments.out / "gan_losses.json").write_text(json.dumps(history) + "\n")
    (arguments.out / "gan.json").write_text(json.dumps(summary, indent=1) + "\n")
    report(summary)
    return summary


def describe(
    arguments: argparse.Namespace,
    params: tuple[Params, Params],
    layers: str,
    parallel: DataParallel,
) -> None:
    """Prints what is about to be trained."""
    generator, discriminator = (sum(v.size for v in network.values()) for network in params)
    print(
        f"generator of {generator:,} parameters, discriminator of {discriminator:,}; batches of "
        f"{arguments.batch} digits, {arguments.size}x{arguments.size}; layers of {layers}"
        f"{parallel.describe()}"
    )


def report(summary: dict[str, Any]) -> None:
    """Prints the figures, the speed first."""
    print(
        describe_times(
            summary["step_seconds"], summary["step_rounds"], summary["gradient_difference"]
        )
    )
    for name in ("discriminator", "generator", "r1", "path"):
        print(f"{name}: {summary[f'{name}_first']:.4f} first, {summary[f'{name}_last']:.4f} last")
    print(
        "squared MMD (maximum mean discrepancy) from held-out digits: "
        f"{summary['distance_first']:.4f} before, {summary['distance_last']:.4f} after; of real "
        f"digits {summary['distance_real']:.4f}, which is zero except for noise"
    )
    print(
        f"wrote {summary['picture']}, gan_losses.png, gan.json and gan_losses.json; "
        f"{summary['seconds']:.0f} s in all"
    )


if __name__ == "__main__":
    main()

"""How a training step scales over the devices of one host: `python -m jax_convgrad bench --devices`.

The step is that of the network that examples/train_superres.py trains, with this package's layers and with
plain lax. It is data-parallel with JAX's own sharding: the batch is divided, the parameters are on every
device, and XLA sums the gradients.

- Weak scaling: the batch grows with the devices, and the step should take no longer.
- Strong scaling: the batch stays, and the step should take 1/N of the time.

All programs are compiled first. Then, round by round, each gives one sample in turn, in an order that
rotates. A sample is the time of many steps in a row, each from the state that the previous one reached. The
host prepares a step while the devices compute the one before, so its work does not count, except at both
ends. The virtual devices of a CPU start no step before all have finished the previous one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax_convgrad
from jax_convgrad._src.timing.method import Method
from jax_convgrad._src.timing.samples import Sampled

FORMS = {
    "ours": (jax_convgrad.conv_general_dilated, jax_convgrad.conv_transpose),
    "lax": (jax.lax.conv_general_dilated, jax.lax.conv_transpose),
}
KINDS = ("weak", "strong")
NUMBERS = ("NHWC", "HWIO", "NHWC")
RATE, MOMENTUM = 1e-4, 0.9

Params = dict[str, jax.Array]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the network, its input images, and one device's part of the batch in weak scaling."""

    width: int
    blocks: int
    patch: int
    batch: int

    @classmethod
    def usual(cls, platform: str) -> Sizes:
        """The example's sizes on a CPU; on a GPU, sizes that keep it busy for some milliseconds."""
        if platform == "cpu":
            return cls(width=32, blocks=4, patch=24, batch=4)
        return cls(width=128, blocks=4, patch=48, batch=64)


@dataclasses.dataclass
class Result(Sampled):
    """One form's figures for one program, with its number of devices and of images. Seconds per step."""

    devices: int
    images: int
    form: str
    samples: list[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    loss: float | None = None
    # The distance of the gradient from that of lax, relative to its norm.
    difference: float | None = None
    failure: str | None = None


# --- The step -------------------------------------------------------------------------------------


def init_params(sizes: Sizes, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights and biases, by the example's names."""
    width = sizes.width
    shapes = {"head": (3, 3, 3, width), "up": (4, 4, width, width), "tail": (3, 3, width, 3)}
    for index in range(sizes.blocks):
        for part in ("first", "second"):
            shapes[f"block{index}_{part}"] = (3, 3, width, width)
    params: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        deviation = 1 / math.sqrt(math.prod(shape[:3]))
        params[f"{name}_w"] = rng.normal(0, deviation, shape).astype(np.float32)
        params[f"{name}_b"] = np.zeros(shape[-1], np.float32)
    return params


def make_model(form: str, blocks: int) -> Callable[[Params, jax.Array], jax.Array]:
    """The example's network with its plain blocks and its transposed convolution."""
    convolve, transpose = FORMS[form]

    def conv(params: Params, name: str, x: jax.Array) -> jax.Array:
        y = convolve(x, params[f"{name}_w"], (1, 1), "SAME", dimension_numbers=NUMBERS)
        return y + params[f"{name}_b"]

    def model(params: Params, low: jax.Array) -> jax.Array:
        x = conv(params, "head", low - 0.5)
        for index in range(blocks):
            y = jax.nn.relu(conv(params, f"block{index}_first", x))
            x = x + conv(params, f"block{index}_second", y)
        x = transpose(x, params["up_w"], (2, 2), "SAME", dimension_numbers=NUMBERS)
        y = conv(params, "tail", jax.nn.relu(x + params["up_b"]))
        enlarged: jax.Array = jax.image.resize(low, y.shape, "cubic")
        return enlarged + y

    return model


def make_step(form: str, blocks: int) -> Callable[..., Any]:
    """One step of gradient descent with momentum on the mean squared error.

    Not the example's absolute error: its gradient jumps, so two correct programs could differ.
    """
    model = make_model(form, blocks)

    def loss_of(params: Params, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.mean((model(params, low) - high) ** 2)

    def step(state: tuple[Params, Params], low: jax.Array, high: jax.Array) -> Any:
        params, mean = state
        loss, gradients = jax.value_and_grad(loss_of)(params, low, high)
        mean = jax.tree.map(lambda m, g: MOMENTUM * m + g, mean, gradients)
        return (jax.tree.map(lambda p, m: p - RATE * m, params, mean), mean), loss

    return step


# --- Measuring ------------------------------------------------------------------------------------


def programs(
    kinds: Sequence[str], counts: Sequence[int], batch: int
) -> dict[str, list[tuple[int, int]]]:
    """The (devices, images) of each kind of scaling. Some may be in both."""
    found = {
        "weak": [(n, n * batch) for n in counts],
        "strong": [(n, max(counts) * batch) for n in counts],
    }
    return {kind: found[kind] for kind in kinds}


@dataclasses.dataclass
class _Contestant:
    result: Result
    sample: Callable[[], float]
    spent: float = 0.0


def run(
    wanted: Sequence[tuple[int, int]],
    forms: Sequence[str],
    sizes: Sizes,
    method: Method,
    advance: Say,
) -> tuple[list[Result], bool]:
    """Times every (devices, images) in every form. `advance` is called as each is compiled.

    A KeyboardInterrupt ends the run but keeps its results. The second result says whether there was none.
    """
    results: list[Result] = []
    finished = False
    contestants: list[_Contestant] = []
    with contextlib.suppress(KeyboardInterrupt):
        for devices, images in wanted:
            gradients = {}
            for form in forms:
                results.append(result := Result(devices, images, form))
                try:
                    gradients[form], sample = _prepare(result, sizes, method)
                    contestants.append(_Contestant(result, sample))
                except Exception as error:  # The others continue, and the failure is reported.
                    result.failure = f"{type(error).__name__}: {str(error).strip()[:300]}"
                advance(f"{form} on {devices}, {images} images")
            if {"ours", "lax"} <= gradients.keys():
                ours = next(r for r in results[-len(forms) :] if r.form == "ours")
                norm = max(float(np.linalg.norm(gradients["lax"])), 1e-30)
                apart = np.linalg.norm(gradients["ours"] - gradients["lax"])
                ours.difference = float(apart) / norm
        for round_ in range(method.rounds):
            turn = round_ % max(1, len(contestants))
            for entry in contestants[turn:] + contestants[:turn]:
                if round_ >= method.min_rounds and entry.spent > method.form_seconds:
                    continue
                time.sleep(method.pause_seconds)
                started = time.perf_counter()
                entry.result.samples.append(entry.sample())
                entry.spent += time.perf_counter() - started
        finished = True
    return results, finished


def _prepare(
    result: Result, sizes: Sizes, method: Method
) -> tuple[np.ndarray, Callable[[], float]]:
    """Compiles and warms up. Returns the first gradient, and a sampler in seconds per step."""
    mesh = Mesh(np.array(jax.local_devices()[: result.devices]), ("batch",))
    replicated = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    rng = np.random.default_rng(method.seed)
    params = init_params(sizes, rng)
    side = sizes.patch
    low = rng.random((result.images, side, side, 3), np.float32)
    high = rng.random((result.images, 2 * side, 2 * side, 3), np.float32)
    zeros = jax.tree.map(np.zeros_like, params)
    state = jax.device_put((params, zeros), replicated)
    batch = jax.device_put((low, high), divided)
    step = jax.jit(make_step(result.form, sizes.blocks), out_shardings=replicated)

    # jaxlib 0.10 hangs where one of several virtual devices gets some thirty steps ahead of the others.
    waits = result.devices > 1 and jax.default_backend() == "cpu"

    def sample(count: int) -> float:
        started, now = time.perf_counter(), state
        for _ in range(count):
            now, _ = step(now, *batch)
            if waits:
                jax.block_until_ready(now)
        jax.block_until_ready(now)
        return (time.perf_counter() - started) / count

    (_, gradients), loss = step(state, *batch)
    result.loss = float(loss)
    gradient = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradients)])
    if not np.isfinite(gradient).all():
        raise FloatingPointError("the gradient is not finite")
    seconds = min(sample(1) for _ in range(2))
    if seconds < method.sample_seconds:
        seconds = min(seconds, sample(3))  # steps in a row are faster
    result.steps = max(1, math.ceil(method.sample_seconds / seconds))
    return gradient, lambda: sample(result.steps)

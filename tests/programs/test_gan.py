"""The networks and losses of examples/train_gan.py, in float64."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.meshes import need_devices

SIZE, WIDTH, BATCH = 16, 4, 8


@pytest.fixture
def gan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import train_gan

    return train_gan


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def batch(gan: ModuleType, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    image = (BATCH, SIZE, SIZE, 1)
    shapes = image, (BATCH, gan.LATENT), image
    return tuple(rng.standard_normal(shape) for shape in shapes)


def steps(
    gan: ModuleType,
    layers: str,
    params: Any,
    batches: list[tuple[np.ndarray, ...]],
    devices: int = 1,
) -> tuple[Any, list[dict[str, float]]]:
    """The state after a step for each batch, and the losses."""
    parallel = gan.DataParallel(devices)
    networks = gan.make_networks(gan.LAYERS[layers], SIZE)
    step = parallel.jit(gan.make_step(networks, 1e-3, gan.Weights(2.0, 3.0)))
    state, history = parallel.replicate(gan.init_state(*params)), []
    for one in batches:
        state, losses = step(state, *parallel.divide(*one))
        history.append({name: float(value) for name, value in losses.items()})
    return jax.device_get(state), history


def assert_same(found: Any, expected: Any, limit: float) -> None:
    """Every array to `limit` of its largest value."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=0, atol=limit * max(np.abs(b).max(), 1e-300))


def test_gradients_are_those_with_lax(gan: ModuleType, rng: np.random.Generator) -> None:
    """Second derivatives of both networks among them."""
    params = wide(gan.init_params(rng, SIZE, WIDTH))
    batches = [batch(gan, rng)]
    (ours, history), (lax, expected) = (
        steps(gan, name, params, batches) for name in ("ours", "lax")
    )
    assert_same(history, expected, 1e-12)
    for network in ("generator", "discriminator"):
        assert_same(getattr(ours, network).mean, getattr(lax, network).mean, 1e-10)
        moved = jax.tree.map(lambda leaf: np.abs(leaf).max(), getattr(ours, network).mean)
        assert all(size > 0 for size in jax.tree.leaves(moved))


def test_several_devices(gan: ModuleType, rng: np.random.Generator) -> None:
    need_devices(4)
    params = wide(gan.init_params(rng, SIZE, WIDTH))
    batches = [batch(gan, rng) for _ in range(3)]
    found, history = steps(gan, "ours", params, batches, devices=4)
    expected, alone = steps(gan, "ours", params, batches)
    assert_same(history, alone, 1e-12)
    assert_same(found, expected, 1e-9)


def test_losses_and_penalties_are_what_they_are_called(
    gan: ModuleType, rng: np.random.Generator
) -> None:
    """Written down again, from each example's own gradient; and their weights in what is descended."""
    params = wide(gan.init_params(rng, SIZE, WIDTH))
    real, latent, noise = batch(gan, rng)
    generator, discriminator = gan.make_networks(gan.LAYERS["lax"], SIZE)
    state, (losses,) = steps(gan, "ours", params, [(real, latent, noise)])
    made = generator(params[0], latent)

    def r1(judge: Any) -> jax.Array:
        slopes = jax.vmap(jax.grad(lambda image: discriminator(judge, image[None])[0]))(real)
        return jnp.mean(jnp.sum(slopes**2, axis=(1, 2, 3)))

    def of_discriminator(judge: Any) -> jax.Array:
        return jnp.mean(jnp.log1p(jnp.exp(-discriminator(judge, real)))) + jnp.mean(
            jnp.log1p(jnp.exp(discriminator(judge, made)))
        )

    def lengths(maker: Any) -> jax.Array:
        def along(latent: jax.Array, noise: jax.Array) -> jax.Array:
            return jnp.vdot(generator(maker, latent[None])[0], noise) / SIZE

        return jnp.linalg.norm(jax.vmap(jax.grad(along))(latent, noise), axis=1)

    def of_generator(maker: Any) -> jax.Array:
        scores = discriminator(params[1], generator(maker, latent))
        return jnp.mean(jnp.log1p(jnp.exp(-scores)))

    expected = {
        "discriminator": of_discriminator(params[1]),
        "r1": r1(params[1]),
        "generator": of_generator(params[0]),
        "path": jnp.var(lengths(params[0])),
    }
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(losses[name], value, rtol=1e-9, err_msg=name)

    # `steps` weighs R1 by 2 and path lengths by 3. The moments start at zero.
    mean = lengths(params[0]).mean()
    judge = jax.grad(lambda p: of_discriminator(p) + 2.0 / 2 * r1(p))(params[1])
    maker = jax.grad(lambda p: of_generator(p) + 3.0 * jnp.mean((lengths(p) - mean) ** 2))(
        params[0]
    )
    for network, gradient in ((state.generator, maker), (state.discriminator, judge)):
        first = jax.tree.map(lambda leaf: (1 - gan.BETAS[0]) * leaf, gradient)
        assert_same(network.mean, first, 1e-9)


def test_the_distance_is_its_definition(gan: ModuleType, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((7, 2, 2, 1)), 0.5 + rng.standard_normal((5, 2, 2, 1))

    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return (np.vdot(x, y) / 4 + 1) ** 3

    within = [
        np.mean([kernel(x, y) for x, y in itertools.permutations(images, 2)]) for images in (a, b)
    ]
    across = np.mean([kernel(x, y) for x in a for y in b])
    assert gan.kernel_distance(a, b) == pytest.approx(sum(within) - 2 * across, rel=1e-12)


def test_the_distance_has_no_bias(gan: ModuleType, rng: np.random.Generator) -> None:
    """For sets of the same distribution it is zero in the mean, of others it is not."""
    same, other = [], []
    for _ in range(200):
        a, b = rng.standard_normal((2, 20, 4))
        same.append(gan.kernel_distance(a, b))
        other.append(gan.kernel_distance(a, b + 1))
    chance = np.std(same) / np.sqrt(len(same))
    assert abs(np.mean(same)) < 4 * chance
    assert np.mean(other) > 20 * chance

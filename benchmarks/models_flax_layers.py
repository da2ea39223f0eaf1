"""Layers of several models in Flax, and the order in which a model calls the layers that have weights."""

from __future__ import annotations

import functools
import operator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class BatchNorm(nn.Module):
    """Batch normalization by the batch's own statistics, as in training; no running averages."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x.astype(jnp.promote_types(self.dtype, jnp.float32))
        axes = tuple(range(x.ndim - 1))
        mean = jnp.mean(x, axes)
        variance = jnp.mean(x * x, axes) - mean * mean
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        x = (x - mean) * (jax.lax.rsqrt(variance + 1e-5) * scale) + bias
        return x.astype(self.dtype)


class Normalized(nn.Module):
    """A convolution without bias, and batch normalization."""

    width: int
    kernel: int
    stride: int
    dtype: Any
    groups: int = 1

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(
            self.width,
            (self.kernel,) * 2,
            (self.stride,) * 2,
            self.kernel // 2,
            feature_group_count=self.groups,
            use_bias=False,
            dtype=self.dtype,
        )(x)
        return BatchNorm(self.dtype)(x)


class LayerScale(nn.Module):
    """A factor for each channel.

    Touvron, Cord, Sablayrolles, Synnaeve, Jégou: Going deeper with Image Transformers, 2021.
    """

    first: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.constant(self.first), x.shape[-1:])
        return x * scale.astype(self.dtype)


_WITH_WEIGHTS = nn.Conv | nn.ConvTranspose | nn.Dense | nn.LayerNorm | BatchNorm | LayerScale


def weights_in_order(model: nn.Module, variables: Any, x: Any) -> list[Any]:
    """The weights of each layer, in the order in which the model calls them."""
    paths = []

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = isinstance(context.module, _WITH_WEIGHTS)
        if layer and context.method_name == "__call__":
            paths.append(context.module.path)
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(model.apply, variables, x)
    return [functools.reduce(operator.getitem, path, variables["params"]) for path in paths]

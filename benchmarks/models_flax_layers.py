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

    @nn.compact
    def __call__(self, x: Any) -> Any:
        sizes, strides = (self.kernel,) * 2, (self.stride,) * 2
        x = nn.Conv(self.width, sizes, strides, self.kernel // 2, use_bias=False, dtype=self.dtype)(
            x
        )
        return BatchNorm(self.dtype)(x)


def weights_in_order(model: nn.Module, variables: Any, x: Any) -> list[Any]:
    """The weights of each layer, in the order in which the model calls them."""
    paths = []

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = isinstance(context.module, nn.Conv | nn.ConvTranspose | nn.Dense | BatchNorm)
        if layer and context.method_name == "__call__":
            paths.append(context.module.path)
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(model.apply, variables, x)
    return [functools.reduce(operator.getitem, path, variables["params"]) for path in paths]

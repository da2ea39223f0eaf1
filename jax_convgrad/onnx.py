"""ONNX's Conv, ConvTranspose and Resize, and their gradients, on JAX arrays.

Arguments are the operators' inputs and attributes as ONNX defines them: activations are N x C x
space, weights of Conv are M x C/group x kernel and those of ConvTranspose C x M/group x kernel.
Every attribute means the same in the gradients as in the forward operators, auto_pad,
output_padding and output_shape included.

All functions can be jitted and mapped. The gradient of a forward operator is its gradient operator,
wired to it by `jax.custom_vjp`: `jax.grad` of `conv` is `conv_grad`. So forward operators have reverse
mode only, of any order, and raise TypeError in forward mode; the gradient operators have both modes.

Where ONNX leaves a case open:

- The total padding that ``auto_pad`` or ``output_shape`` of ConvTranspose asks for can come out
  negative: the wanted output is larger than the full result. The missing elements are then appended
  at the end, as ``output_padding`` appends them; they hold zero, or the bias. They must be fewer
  than the stride or the dilation, which is what ``output_padding`` is limited to.
- An odd total is split as the equations of ConvTranspose say: SAME_UPPER has the larger half at the
  end, everything else, NOTSET included, at the beginning.

Resize is `resize`, its gradient `resize_grad`.
"""

from jax_convgrad._src.interop.onnx_conv import (
    conv,
    conv_grad,
    conv_transpose,
    conv_transpose_grad,
)
from jax_convgrad._src.interop.onnx_resize import resize, resize_grad

__all__ = [
    "conv",
    "conv_grad",
    "conv_transpose",
    "conv_transpose_grad",
    "resize",
    "resize_grad",
]

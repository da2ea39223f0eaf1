"""The convolution and interpolation operations of oneDNN Graph, on JAX arrays.

Arguments are the operations' inputs and attributes under oneDNN's names. ``data_format`` is "NXC"
or "NCX". ``weights_format`` is "XIO", "OIX", "XOI" or "IOX" in every function, and each letter
names its axis: O counts the output channels and I the input channels, of the operation as it runs
forwards. A plain convolution has input channels / groups along I and all output channels along O; a
transposed one all input channels along I and output channels / groups along O.

All functions can be jitted and mapped. The gradients of a forward operation are its backward
operations, wired to it by `jax.custom_vjp`: `jax.grad` of `convolution` is `convolution_backward_data`
or `convolution_backward_weights`. So forward operations have reverse mode only, of any order, and raise
TypeError in forward mode; the backward operations have both modes.

Where oneDNN's documentation and its source (shape inference, schemas, tests) disagree, these
functions follow the source:

- The odd element of a SAME_UPPER padding is at the end, that of SAME_LOWER at the beginning,
  everywhere. The documentation of ConvolutionBackwardData has it the other way round.
- Weights of the transposed family are (in, out / groups), not (in / groups, out).
- ``auto_pad`` other than none overrides ``pads_begin`` and ``pads_end``, which must still be given,
  as the schemas require; an empty sequence means zeros.
- For ConvTranspose, SAME pads by dilated kernel - stride elements. For ConvTransposeBackwardData the source
  applies the rule of a plain convolution to diff_dst instead. Both agree where diff_dst is a multiple of
  the stride; see
  `conv_transpose_backward_data`.

One thing goes beyond the source: ``output_padding`` is an argument of the transposed backward
operations too. The schemas lack it, so oneDNN itself rejects an attribute that its documentation lists.
"""

from jax_convgrad._src.interop.onednn_conv import (
    conv_transpose,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    convolution,
    convolution_backward_data,
    convolution_backward_weights,
)
from jax_convgrad._src.interop.onednn_resize import interpolate, interpolate_backward

__all__ = [
    "conv_transpose",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
    "interpolate",
    "interpolate_backward",
]

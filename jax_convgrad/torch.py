"""PyTorch's convolutions, transposed convolutions and interpolate, on JAX arrays.

For porting a model: names, argument order, defaults, layouts and rules are those of `torch.nn.functional`,
as PyTorch 2.13 documents them. Images are batch x channels x space, or channels x space without a batch;
weights of a convolution are output channels x input channels / groups x kernel, those of a transposed one
input channels x output channels / groups x kernel. State dicts can be used as they are. All functions can
be jitted, mapped and differentiated to any order, in both modes; PyTorch itself is neither needed nor
imported.

Arrays are float16, bfloat16, float32 or float64. All arrays of a call must have the same dtype, which is
also the result's; 16-bit arrays are summed in float32. Where PyTorch raises, so do these functions: a
ValueError, or a TypeError for arguments of the wrong kind. `jax.default_matmul_precision` says whether
float32 products may be rounded to TF32, as `torch.backends.cudnn.allow_tf32` does.

Its resizes are `interpolate`.
"""

from jax_convgrad._src.interop.torch_conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from jax_convgrad._src.interop.torch_resize import interpolate

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "interpolate",
]

"""Who computes a layer: this package, lax, the best form in pure JAX, and PyTorch.

A form turns a case and a pass into runners. A runner computes that pass and nothing else: what a
training step needs for another pass (the forward result while only dX is asked for) is left to XLA
to remove, and the tests look into the compiled programs to see that it was.

Arrays come in and go out channels last, weights as (spatial, in / groups, out), as cases.py has
them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad.bench.cases import DTYPES, Case, dimension_numbers

PASSES = ("fprop", "dx", "dw", "dxdwdb")
RESULTS = {"fprop": ("y",), "dx": ("dx",), "dw": ("dw",), "dxdwdb": ("dx", "dw", "db")}
PASS_TITLES = {
    "fprop": "forward",
    "dx": "dX",
    "dw": "dW",
    "dxdwdb": "dX + dW + dB",
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The operands of all passes of one case."""

    x: np.ndarray
    w: np.ndarray
    dy: np.ndarray

    @classmethod
    def random(cls, case: Case, rng: np.random.Generator) -> Inputs:
        """Standard normal numbers, rounded to the case's dtype."""
        dtype = jnp.dtype(DTYPES[case.dtype])
        wide = np.float64 if dtype == np.float64 else np.float32
        return cls(
            *(
                rng.standard_normal(shape, wide).astype(dtype)
                for shape in (case.x_shape, case.w_shape, case.y_shape)
            )
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all three."""
        return self.x.nbytes + self.w.nbytes + self.dy.nbytes


@dataclasses.dataclass(frozen=True)
class Runner:
    """One pass of one case, ready to be called again and again."""

    load: Callable[[Inputs], Any]
    call: Callable[[Any], Any]
    wait: Callable[[Any], None]
    fetch: Callable[[Any], dict[str, np.ndarray]]
    variant: str = ""
    # On a GPU: keeps the device busy for some milliseconds, and returns a function that waits for
    # the end of that and of nothing behind it.
    hold: Callable[[], Callable[[], None]] | None = None


class Form(abc.ABC):
    """A way to compute all passes of a layer."""

    name: str

    def unavailable(self) -> str | None:
        """Why this form cannot run at all on this machine, or None."""
        return None

    def not_applicable(self, case: Case) -> str | None:
        """Why this form does not exist for the case, or None."""
        return None

    @abc.abstractmethod
    def runners(self, case: Case, pass_: str, layout: str) -> list[Runner]:
        """What to time. Of several variants the one that is faster in the warm-up is kept."""


# --- JAX ------------------------------------------------------------------------------------------

Layer = Callable[..., jax.Array]  # (x, w, bias or None) -> y
Pass = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]  # (x, w, dy) -> results


class JaxForm(Form):
    """A form that is a JAX function."""

    @abc.abstractmethod
    def function(self, case: Case, pass_: str, layout: str) -> Pass:
        """The pass as a JAX function of (x, w, dy), to be jitted."""

    def runners(self, case: Case, pass_: str, layout: str) -> list[Runner]:
        """One runner: the jitted function."""
        fn = jax.jit(self.function(case, pass_, layout))
        to_w, from_w = _weight_axes(case.ndim, layout)
        to_x, from_x = _activation_axes(case.ndim, layout)

        def load(inputs: Inputs) -> tuple[jax.Array, ...]:
            arrays = (
                inputs.x.transpose(to_x),
                inputs.w.transpose(to_w),
                inputs.dy.transpose(to_x),
            )
            # A copy, because on a CPU device_put may share the bytes of a NumPy array, and every
            # set of inputs must have memory of its own.
            return jax.block_until_ready(tuple(jnp.array(a, copy=True) for a in arrays))

        def fetch(out: tuple[jax.Array, ...]) -> dict[str, np.ndarray]:
            axes = {"y": from_x, "dx": from_x, "dw": from_w, "db": (0,)}
            return {
                key: np.asarray(value).astype(np.float64).transpose(axes[key])
                for key, value in zip(RESULTS[pass_], out, strict=True)
            }

        hold = _jax_hold if jax.default_backend() == "gpu" else None
        return [Runner(load, lambda arrays: fn(*arrays), jax.block_until_ready, fetch, hold=hold)]


# Matrix products to hold a GPU with: about 6 ms on an H100, more on a smaller one.
HOLD_SIZE, HOLD_PRODUCTS = 8192, 4


def _jax_hold() -> Callable[[], None]:
    out = _jax_busy()(_jax_square())
    return lambda: jax.block_until_ready(out)


@functools.cache
def _jax_square() -> jax.Array:
    return jnp.zeros((HOLD_SIZE, HOLD_SIZE), jnp.bfloat16)


@functools.cache
def _jax_busy() -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda a: functools.reduce(jnp.matmul, [a] * (HOLD_PRODUCTS + 1)))


def layer_pass(layer: Layer, cout: int, pass_: str) -> Pass:
    """One pass of a layer through jax.vjp, whose unused primal result XLA drops."""
    if pass_ == "fprop":
        return lambda x, w, dy: (layer(x, w, None),)
    if pass_ == "dx":
        return lambda x, w, dy: jax.vjp(lambda x: layer(x, w, None), x)[1](dy)
    if pass_ == "dw":
        return lambda x, w, dy: jax.vjp(lambda w: layer(x, w, None), w)[1](dy)

    def gradients(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        bias = jnp.zeros((cout,), dy.dtype)
        return jax.vjp(layer, x, w, bias)[1](dy)

    return gradients


class OursForm(JaxForm):
    """The layers of this package."""

    name = "ours"

    def function(self, case: Case, pass_: str, layout: str) -> Pass:
        """The layer of the same name as lax's, differentiated by jax.vjp."""
        import jax_convgrad

        numbers = dimension_numbers(case.ndim, layout)

        def layer(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            if case.transposed:
                return jax_convgrad.conv_transpose(
                    x,
                    w,
                    case.stride,
                    dilated_padding(case),
                    rhs_dilation=case.dilation,
                    dimension_numbers=numbers,
                    feature_group_count=case.groups,
                    bias=bias,
                )
            return jax_convgrad.conv_general_dilated(
                x,
                w,
                case.stride,
                [(p, p) for p in case.padding],
                rhs_dilation=case.dilation,
                dimension_numbers=numbers,
                feature_group_count=case.groups,
                bias=bias,
            )

        return layer_pass(layer, case.cout, pass_)


class LaxForm(JaxForm):
    """What a JAX program has today. A transposed convolution is the input-dilated convolution."""

    name = "lax"

    def function(self, case: Case, pass_: str, layout: str) -> Pass:
        """lax.conv_general_dilated, which lax.conv_transpose comes down to, and its jax.vjp."""
        numbers = dimension_numbers(case.ndim, layout)
        if case.transposed:
            window = {
                "window_strides": (1,) * case.ndim,
                "padding": dilated_padding(case),
                "lhs_dilation": case.stride,
            }
        else:
            window = {"window_strides": case.stride, "padding": [(p, p) for p in case.padding]}

        def layer(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            y = jax.lax.conv_general_dilated(
                x,
                w,
                rhs_dilation=case.dilation,
                dimension_numbers=numbers,
                feature_group_count=case.groups,
                **window,
            )
            return y if bias is None else y + _bias_to(bias, layout, case.ndim)

        return layer_pass(layer, case.cout, pass_)


class SwapForm(JaxForm):
    """Pure JAX at its best for a transposed convolution: the roles of input and output swapped.

    The layer's input gradient is the strided convolution F(dy, w). The layer itself is F transposed
    in dy, and the weight gradient is F transposed in w with x as its cotangent, so that XLA meets
    only forms it knows.
    """

    name = "swap"

    def not_applicable(self, case: Case) -> str | None:
        """Plain convolutions have nothing to swap."""
        return None if case.transposed else "a plain convolution is in this form already"

    def function(self, case: Case, pass_: str, layout: str) -> Pass:
        """Every pass from the strided convolution whose adjoint the layer is."""
        adjoint = functools.partial(_adjoint_conv, case, layout)

        def fprop(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            return jax.linear_transpose(lambda u: adjoint(u, w), _like(dy))(x)

        def dx(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            return (adjoint(dy, w),)

        def dw(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            return jax.linear_transpose(lambda v: adjoint(dy, v), _like(w))(x)

        def dxdwdb(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            channel = dy.ndim - 1 if layout == "NHWC" else 1
            db = dy.sum(axis=tuple(a for a in range(dy.ndim) if a != channel))
            return (*dx(x, w, dy), *dw(x, w, dy), db)

        return {"fprop": fprop, "dx": dx, "dw": dw, "dxdwdb": dxdwdb}[pass_]


def dilated_padding(case: Case) -> list[tuple[int, int]]:
    """The padding as lax.conv_transpose counts it: that of the input with zeros between."""
    axes = zip(case.kernel, case.padding, case.output_padding, case.dilation, strict=True)
    return [(d * (k - 1) - p, d * (k - 1) - p + op) for k, p, op, d in axes]


def _adjoint_conv(case: Case, layout: str, u: jax.Array, w: jax.Array) -> jax.Array:
    """The strided convolution from the layer's output to its input, linear in `u` and `w`."""
    # Where stride and dilation have a common factor c, only every c-th element of u is ever read:
    # take those, and divide both by c. XLA then needs no dilated gradient.
    common = tuple(map(math.gcd, case.stride, case.dilation))
    spatial = range(1, case.ndim + 1) if layout == "NHWC" else range(2, case.ndim + 2)
    padding = [(0, 0)] * case.ndim
    if all(c == 1 for c in common):
        axes = zip(case.kernel, case.padding, case.dilation, case.stride, strict=True)
        sizes = zip(case.spatial, case.out_spatial, strict=True)
        # The high side may be smaller than the low one, and negative: rows that no window reads are
        # cut off.
        padding = [
            (p, (i - 1) * s + d * (k - 1) + 1 - o - p)
            for (k, p, d, s), (i, o) in zip(axes, sizes, strict=True)
        ]
    else:
        pads, starts, steps = [(0, 0, 0)] * u.ndim, [0] * u.ndim, [1] * u.ndim
        limits = list(u.shape)
        for axis, i, k, s, p, d, c in zip(
            spatial,
            case.spatial,
            case.kernel,
            case.stride,
            case.padding,
            case.dilation,
            common,
            strict=True,
        ):
            extent = (i - 1) * s + d * (k - 1) + 1
            pads[axis] = (p, extent - u.shape[axis] - p, 0)
            limits[axis], steps[axis] = extent, c
        u = jax.lax.slice(jax.lax.pad(u, u.dtype.type(0), pads), starts, limits, steps)
    return jax.lax.conv_general_dilated(
        u,
        _adjoint_weights(w, case, layout),
        window_strides=[s // c for s, c in zip(case.stride, common, strict=True)],
        padding=padding,
        rhs_dilation=[d // c for d, c in zip(case.dilation, common, strict=True)],
        dimension_numbers=dimension_numbers(case.ndim, layout),
        feature_group_count=case.groups,
    )


def _adjoint_weights(w: Any, case: Case, layout: str) -> Any:
    """Weights of a transposed convolution as those of the strided one: turned, in and out swapped.

    Works on JAX and NumPy arrays alike.
    """
    groups, inside, outside = case.groups, case.cin // case.groups, case.cout // case.groups
    if layout == "NHWC":
        taps = tuple(range(case.ndim))
        w = w[(slice(None, None, -1),) * case.ndim]
        w = w.reshape(*case.kernel, inside, groups, outside)
        axes = (*taps, case.ndim + 2, case.ndim + 1, case.ndim)
        return w.transpose(axes).reshape(*case.kernel, outside, case.cin)
    w = w[(slice(None), slice(None), *(slice(None, None, -1),) * case.ndim)]
    w = w.reshape(groups, outside, inside, *case.kernel)
    axes = (0, 2, 1, *range(3, case.ndim + 3))
    return w.transpose(axes).reshape(case.cin, outside, *case.kernel)


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _bias_to(bias: jax.Array, layout: str, ndim: int) -> jax.Array:
    return bias if layout == "NHWC" else bias.reshape(-1, *(1,) * ndim)


def _activation_axes(ndim: int, layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Transpositions from channels last to the layout and back."""
    to = tuple(range(ndim + 2)) if layout == "NHWC" else (0, ndim + 1, *range(1, ndim + 1))
    return to, tuple(int(a) for a in np.argsort(to))


def _weight_axes(ndim: int, layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Transpositions from (spatial, in, out) to the layout's weights and back."""
    to = tuple(range(ndim + 2)) if layout == "NHWC" else (ndim + 1, ndim, *range(ndim))
    return to, tuple(int(a) for a in np.argsort(to))


# --- PyTorch --------------------------------------------------------------------------------------


class TorchForm(Form):
    """aten::convolution and aten::convolution_backward, which compute only what is asked for."""

    name = "torch"

    def unavailable(self) -> str | None:
        """PyTorch missing, or without support for the device that JAX runs on."""
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is not installed"
        platform = jax.default_backend()
        if platform == "cpu":
            return None
        import torch

        if platform != "gpu":
            return f"not compared on {platform}"
        return None if torch.cuda.is_available() else "this PyTorch sees no GPU"

    def runners(self, case: Case, pass_: str, layout: str) -> list[Runner]:
        """Channels-last tensors for NHWC, contiguous ones for NCHW.

        Along one and three spatial axes channels last is not PyTorch's usual way, so there the
        contiguous tensors of an ordinary PyTorch program are tried as well.
        """
        if layout == "NCHW":
            return [self._runner(case, pass_, channels_last=False)]
        runners = [self._runner(case, pass_, channels_last=True)]
        if case.ndim != 2:
            runners.append(self._runner(case, pass_, channels_last=False))
        return runners

    def _runner(self, case: Case, pass_: str, channels_last: bool) -> Runner:
        import torch

        on_gpu = jax.default_backend() == "gpu"
        device = torch.device("cuda" if on_gpu else "cpu")
        torch.backends.cudnn.benchmark = True
        if not on_gpu:
            torch.set_num_threads(cpu_threads())
        dtype = getattr(torch, DTYPES[case.dtype])

        # PyTorch knows no channels-last order of three-dimensional tensors: one spatial axis
        # becomes two.
        widen = channels_last and case.ndim == 1
        formats = {1: torch.channels_last, 2: torch.channels_last, 3: torch.channels_last_3d}
        memory = formats[case.ndim] if channels_last else torch.contiguous_format
        to_x, from_x = _activation_axes(case.ndim, "NCHW")
        to_w, from_w = _weight_axes(case.ndim, "NCHW")

        def tensor(array: np.ndarray) -> Any:
            wide = array if array.dtype == np.float64 else array.astype(np.float32)
            t = torch.from_numpy(np.array(wide, order="C")).to(device, dtype)
            return (t.unsqueeze(2) if widen else t).contiguous(memory_format=memory)

        def array(t: Any) -> np.ndarray:
            t = t.squeeze(2) if widen and t.ndim == 4 else t
            return t.to(torch.float64).cpu().numpy()

        def weights_in(w: np.ndarray) -> np.ndarray:
            w = w.transpose(to_w)
            return _adjoint_weights(w, case, "NCHW") if case.transposed else w

        def weights_out(w: np.ndarray) -> np.ndarray:
            if case.transposed:
                # The exchange undoes itself once the two channel counts have changed places.
                back = dataclasses.replace(case, cin=case.cout, cout=case.cin)
                w = _adjoint_weights(w, back, "NCHW")
            return w.transpose(from_w)

        def load(inputs: Inputs) -> tuple[Any, ...]:
            tensors = (
                tensor(inputs.x.transpose(to_x)),
                tensor(weights_in(inputs.w)),
                tensor(inputs.dy.transpose(to_x)),
            )
            if on_gpu:
                torch.cuda.synchronize()
            return tensors

        def per_axis(values: tuple[int, ...], filler: int) -> list[int]:
            return [filler, *values] if widen else list(values)

        window = (
            per_axis(case.stride, 1),
            per_axis(case.padding, 0),
            per_axis(case.dilation, 1),
            case.transposed,
            per_axis(case.output_padding, 0),
            case.groups,
        )
        mask = [name in RESULTS[pass_] for name in ("dx", "dw", "db")]
        forward = torch.ops.aten.convolution.default
        backward = torch.ops.aten.convolution_backward.default

        @torch.no_grad()
        def call(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
            x, w, dy = tensors
            if pass_ == "fprop":
                return (forward(x, w, None, *window),)
            return backward(dy, x, w, [case.cout] if mask[2] else None, *window, mask)

        def fetch(out: tuple[Any, ...]) -> dict[str, np.ndarray]:
            if pass_ == "fprop":
                return {"y": array(out[0]).transpose(from_x)}
            results = {}
            if mask[0]:
                results["dx"] = array(out[0]).transpose(from_x)
            if mask[1]:
                results["dw"] = weights_out(array(out[1]))
            if mask[2]:
                results["db"] = array(out[2])
            return results

        def wait(out: Any) -> None:
            if on_gpu:
                torch.cuda.synchronize()

        return Runner(
            load,
            call,
            wait,
            fetch,
            variant="channels last" if channels_last else "contiguous",
            hold=_torch_hold if on_gpu else None,
        )


def _torch_hold() -> Callable[[], None]:
    import torch

    product = square = _torch_square()
    for _ in range(HOLD_PRODUCTS):
        product = product @ square
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


@functools.cache
def _torch_square() -> Any:
    import torch

    return torch.zeros((HOLD_SIZE, HOLD_SIZE), dtype=torch.bfloat16, device="cuda")


FORMS: dict[str, Form] = {
    form.name: form for form in (OursForm(), LaxForm(), SwapForm(), TorchForm())
}


def cpu_threads() -> int:
    """The number of XLA's CPU threads: one per processor this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

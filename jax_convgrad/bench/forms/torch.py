"""Who computes a layer: this package, lax, the best form in pure JAX, and PyTorch.

A form turns a case and a pass into runners. A runner computes that pass and nothing else: what a
training step needs for another pass (the forward result while only dX is asked for) is left to XLA
to remove, and the tests look into the compiled programs to see that it was.

Arrays come in and go out channels last, weights as (spatial, in / groups, out), as cases.py has
them.
"""

from __future__ import annotations

import abc
import concurrent.futures
import dataclasses
import functools
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convgrad.bench import resize_forms
from jax_convgrad.bench.cases import DTYPES, Case, default_weights, dimension_numbers
from jax_convgrad.bench.device_clock import DeviceClock, JaxClock, TorchClock
from jax_convgrad.bench.resize_cases import ResizeCase

PASSES = ("fprop", "dx", "dw", "dxdwdb", "ddxddw")
RESULTS = {
    "fprop": ("y",),
    "dx": ("dx",),
    "dw": ("dw",),
    "dxdwdb": ("dx", "dw", "db"),
    "ddxddw": ("ddx", "ddw"),
}
PASS_TITLES = {
    "fprop": "forward",
    "dx": "dX",
    "dw": "dW",
    "dxdwdb": "dX + dW + dB",
    "ddxddw": "double backward",
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
        return cls(
            *(
                _standard_normal(rng, shape, dtype)
                for shape in (case.x_shape, case.w_shape, case.y_shape)
            )
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all three."""
        return self.x.nbytes + self.w.nbytes + self.dy.nbytes


def _standard_normal(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """On all cores, with the same numbers on any number of them."""
    wide = np.empty(shape, np.float64 if dtype == np.float64 else np.float32)
    flat = wide.reshape(-1)
    parts = [flat[i : i + 2**20] for i in range(0, flat.size, 2**20)]

    def draw(rng: np.random.Generator, part: np.ndarray) -> None:
        rng.standard_normal(dtype=part.dtype, out=part)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(draw, rng.spawn(len(parts)), parts))
    # NumPy rounds to bfloat16 on one core, and slowly.
    return wide if wide.dtype == dtype else np.array(jnp.asarray(wide).astype(dtype))


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What it takes to time a GPU, in the framework that a form is written in; device.py uses it.

    Attributes:
      clock: the device's own.
      hold: keeps the device busy for some milliseconds, and returns what is computed at the end of
        that, for a mark behind it.
    """

    clock: DeviceClock
    hold: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Runner:
    """One pass of one case, ready to be called again and again."""

    load: Callable[[Inputs], Any]
    call: Callable[[Any], Any]
    wait: Callable[[Any], None]
    fetch: Callable[[Any], dict[str, np.ndarray]]
    variant: str = ""
    # On a GPU: loaded operands once more, in memory of their own; without the host, which takes longer.
    copy: Callable[[Any], Any] | None = None
    # On a GPU: the pass over several sets of operands, one after the other, as one program.
    batch: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    gpu: Gpu | None = None

    def load_sets(self, inputs: Inputs, count: int) -> list[Any]:
        """So many sets of the same operands."""
        first = self.load(inputs)
        again = (lambda: self.load(inputs)) if self.copy is None else (lambda: self.copy(first))
        return [first, *(again() for _ in range(count - 1))]

    def enqueue(self, sets: Sequence[Any]) -> Sequence[Any]:
        """The results for each set, all alive together, computed one after the other."""
        if self.batch is not None and len(sets) > 1:
            return self.batch(sets)
        return [self.call(arrays) for arrays in sets]


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
    def runners(
        self, case: Case, pass_: str, layout: str, weights: str | None = None
    ) -> list[Runner]:
        """What to time. Of several variants the one that is faster in the warm-up is kept."""


@dataclasses.dataclass(frozen=True)
class WeightsOrder:
    """How the weights handed to a form lie in memory, "HWIO", "OHWI" or "OIHW" for any spatial rank.

    ``turned`` weights are those of a transposed convolution as PyTorch holds them: in the order OHWI of
    the strided convolution that the layer is the adjoint of, which is what cuDNN reads, kernel reversed
    and in and out exchanged (transpose_kernel in JAX). With groups the JAX layers count in and out
    otherwise than that convolution, so that some reordering remains.
    """

    order: str
    ndim: int
    turned: bool = False

    @classmethod
    def make(cls, case: Case, layout: str, weights: str | None = None) -> WeightsOrder:
        """The order asked for; by default HWIO with NHWC, OIHW with NCHW."""
        order = default_weights(layout) if weights is None else weights
        return cls(order, case.ndim, turned=case.transposed and order == "OHWI")

    @property
    def letters(self) -> str:
        """The axes as the layer counts them: I its input channels / groups, O its output channels."""
        letters = self.axes
        return letters.translate(str.maketrans("IO", "OI")) if self.turned else letters

    @property
    def axes(self) -> str:
        """The axes as dimension_numbers name them, of conv_transpose if turned with transpose_kernel."""
        return dimension_numbers(self.ndim, "NHWC", self.order)[1]

    def store(self, w: np.ndarray) -> np.ndarray:
        """From (spatial, in / groups, out)."""
        w = w[(slice(None, None, -1),) * self.ndim] if self.turned else w
        return w.transpose(self._sources())

    def restore(self, w: Any) -> Any:
        """To (spatial, in / groups, out); JAX and NumPy arrays alike."""
        w = w.transpose(tuple(int(a) for a in np.argsort(self._sources())))
        return w[(slice(None, None, -1),) * self.ndim] if self.turned else w

    def straight(self, w: jax.Array) -> jax.Array:
        """The weights with the kernel as the layer applies it, the axes being ``letters``."""
        if not self.turned:
            return w
        return jax.lax.rev(w, tuple(i for i, c in enumerate(self.letters) if c not in "IO"))

    def _sources(self) -> tuple[int, ...]:
        stored = dimension_numbers(self.ndim, "NHWC")[1]
        return tuple(stored.index(letter) for letter in self.letters)


# --- JAX ------------------------------------------------------------------------------------------

Layer = Callable[..., jax.Array]  # (x, w, bias or None) -> y
Pass = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]  # (x, w, dy) -> results


class JaxForm(Form):
    """A form that is a JAX function."""

    @abc.abstractmethod
    def function(self, case: Case, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """The pass as a JAX function of (x, w, dy), to be jitted."""

    def runners(
        self, case: Case, pass_: str, layout: str, weights: str | None = None
    ) -> list[Runner]:
        """One runner: the jitted function."""
        order = WeightsOrder.make(case, layout, weights)
        function = self.function(case, pass_, layout, order)
        to_x, from_x = _activation_axes(case.ndim, layout)

        def load(inputs: Inputs) -> tuple[jax.Array, ...]:
            arrays = (
                inputs.x.transpose(to_x),
                order.store(inputs.w),
                inputs.dy.transpose(to_x),
            )
            # A copy, because on a CPU device_put may share the bytes of a NumPy array, and every
            # set of inputs must have memory of its own.
            return jax.block_until_ready(tuple(jnp.array(a, copy=True) for a in arrays))

        def fetch(out: tuple[jax.Array, ...]) -> dict[str, np.ndarray]:
            found = {key: _widened(value) for key, value in zip(RESULTS[pass_], out, strict=True)}
            return {
                key: order.restore(value)
                if key in ("dw", "ddw")
                else value.transpose((0,) if key == "db" else from_x)
                for key, value in found.items()
            }

        return [jax_runner(function, load, fetch)]


def _widened(array: jax.Array) -> np.ndarray:
    """On the host, in a dtype of NumPy's own: its work with others is slow."""
    return np.asarray(array.astype(jnp.promote_types(array.dtype, jnp.float32)))


def jax_runner(
    function: Callable[..., Any],
    load: Callable[[Any], Any],
    fetch: Callable[[Any], dict[str, np.ndarray]],
) -> Runner:
    """The runner of a JAX function: jitted, and on a GPU several calls as one program."""
    call, batch = jax.jit(function), jax.jit(chained(function))
    return Runner(
        load,
        lambda arrays: call(*arrays),
        jax.block_until_ready,
        fetch,
        copy=lambda arrays: tuple(map(jnp.copy, arrays)),
        batch=lambda sets: batch(tuple(sets)),
        gpu=_jax_gpu() if jax.default_backend() == "gpu" else None,
    )


def chained(function: Callable[..., Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of several sets of operands that calls ``function`` on one after the other.

    Each call's operands pass a barrier together with the results of the call before, so that the
    compiler can neither reorder the calls nor merge parts of them.
    """

    def run(sets: Sequence[Any]) -> tuple[Any, ...]:
        results: list[Any] = []
        for arrays in sets:
            if results:
                results[-1], arrays = jax.lax.optimization_barrier((results[-1], arrays))
            results.append(function(*arrays))
        return tuple(results)

    return run


# Matrix products to hold a GPU with: about 3 ms on an H100, more on a smaller one.
HOLD_SIZE, HOLD_PRODUCTS = 8192, 2


@functools.cache
def _jax_gpu() -> Gpu:
    return Gpu(JaxClock(), lambda: _jax_busy()(_jax_square()))


@functools.cache
def _jax_square() -> jax.Array:
    return jnp.zeros((HOLD_SIZE, HOLD_SIZE), jnp.bfloat16)


@functools.cache
def _jax_busy() -> Callable[[jax.Array], jax.Array]:
    def products(a: jax.Array) -> jax.Array:
        # All of the product is computed, whatever of it is asked for.
        return jax.lax.optimization_barrier(
            functools.reduce(jnp.matmul, [a] * (HOLD_PRODUCTS + 1))
        )[0, 0]

    return jax.jit(products)


def layer_pass(layer: Layer, cout: int, pass_: str) -> Pass:
    """One pass of a layer through jax.vjp, whose unused primal result XLA drops."""
    if pass_ == "fprop":
        return lambda x, w, dy: (layer(x, w, None),)
    if pass_ == "dx":
        return lambda x, w, dy: jax.vjp(lambda x: layer(x, w, None), x)[1](dy)
    if pass_ == "dw":
        return lambda x, w, dy: jax.vjp(lambda w: layer(x, w, None), w)[1](dy)
    if pass_ == "ddxddw":
        return functools.partial(_double_backward, layer)

    def gradients(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        bias = jnp.zeros((cout,), dy.dtype)
        return jax.vjp(layer, x, w, bias)[1](dy)

    return gradients


def _double_backward(
    layer: Layer, x: jax.Array, w: jax.Array, dy: jax.Array
) -> tuple[jax.Array, ...]:
    """What a penalty on an input gradient asks of a layer: its second derivatives in one step.

    The gradients, with respect to x and w, of half the squared norm of the gradient with respect to x
    of the loss |layer(x, w) - dy|^2 / 2.
    """

    def input_gradient(x: jax.Array, w: jax.Array) -> jax.Array:
        y, pull_back = jax.vjp(lambda x: layer(x, w, None), x)
        return pull_back(y - dy)[0]

    dx, pull_back = jax.vjp(input_gradient, x, w)
    return pull_back(dx)


class OursForm(JaxForm):
    """The layers of this package."""

    name = "ours"

    def function(self, case: Case, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """The layer of the same name as lax's, differentiated by jax.vjp."""
        import jax_convgrad

        if isinstance(case, ResizeCase):
            return resize_forms.ours(case, pass_, layout)
        numbers = dimension_numbers(case.ndim, layout, weights.axes)

        def layer(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            if case.transposed:
                return jax_convgrad.conv_transpose(
                    x,
                    w,
                    case.stride,
                    dilated_padding(case),
                    rhs_dilation=case.dilation,
                    dimension_numbers=numbers,
                    transpose_kernel=weights.turned,
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
    """What a JAX program has today. A transposed convolution is the input-dilated convolution.

    Of a resize it is jax.image.
    """

    name = "lax"

    def function(self, case: Case, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """lax.conv_general_dilated, which lax.conv_transpose comes down to, and its jax.vjp."""
        if isinstance(case, ResizeCase):
            return resize_forms.jax_image(case, pass_, layout)
        numbers = dimension_numbers(case.ndim, layout, weights.letters)
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
                weights.straight(w),
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
        if isinstance(case, ResizeCase):
            return "a resize has no such form"
        return None if case.transposed else "a plain convolution is in this form already"

    def function(self, case: Case, pass_: str, layout: str, weights: WeightsOrder) -> Pass:
        """Every pass from the strided convolution whose adjoint the layer is."""
        adjoint = functools.partial(_adjoint_conv, case, layout, weights)

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

        def ddxddw(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            # What differentiating twice comes to, see _double_backward.
            (y,) = fprop(x, w, dy)
            (slope,) = dx(x, w, y - dy)
            (turned,) = fprop(slope, w, dy)
            (first,), (second,) = dw(slope, w, y - dy), dw(x, w, turned)
            return (*dx(x, w, turned), first + second)

        passes = {"fprop": fprop, "dx": dx, "dw": dw, "dxdwdb": dxdwdb, "ddxddw": ddxddw}
        return passes[pass_]


def dilated_padding(case: Case) -> list[tuple[int, int]]:
    """The padding as lax.conv_transpose counts it: that of the input with zeros between."""
    axes = zip(case.kernel, case.padding, case.output_padding, case.dilation, strict=True)
    return [(d * (k - 1) - p, d * (k - 1) - p + op) for k, p, op, d in axes]


def _adjoint_conv(
    case: Case, layout: str, weights: WeightsOrder, u: jax.Array, w: jax.Array
) -> jax.Array:
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
    w, order = _adjoint_operand(w, case, weights)
    return jax.lax.conv_general_dilated(
        u,
        w,
        window_strides=[s // c for s, c in zip(case.stride, common, strict=True)],
        padding=padding,
        rhs_dilation=[d // c for d, c in zip(case.dilation, common, strict=True)],
        dimension_numbers=dimension_numbers(case.ndim, layout, order),
        feature_group_count=case.groups,
    )


def _adjoint_operand(w: jax.Array, case: Case, weights: WeightsOrder) -> tuple[jax.Array, str]:
    """The strided convolution's weights, from those the layer is given, and their order."""
    if not weights.turned:
        order = "OIHW" if weights.order == "OIHW" else "HWIO"
        return _adjoint_weights(w, case, order), order
    if case.groups == 1:
        return w, "OHWI"  # as they are
    return _adjoint_weights(weights.restore(w), case, "HWIO"), "HWIO"


def _adjoint_weights(w: Any, case: Case, order: str) -> Any:
    """Weights of a transposed convolution as those of the strided one: turned, in and out swapped.

    Works on JAX and NumPy arrays alike, in the orders HWIO and OIHW.
    """
    groups, inside, outside = case.groups, case.cin // case.groups, case.cout // case.groups
    if order == "HWIO":
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


# --- PyTorch --------------------------------------------------------------------------------------


class TorchForm(Form):
    """aten::convolution and aten::convolution_backward, which compute only what is asked for.

    Of a resize, interpolate and its backward operators.
    """

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

    def not_applicable(self, case: Case) -> str | None:
        """Some resizes are not in PyTorch."""
        return resize_forms.torch_missing(case) if isinstance(case, ResizeCase) else None

    def runners(
        self, case: Case, pass_: str, layout: str, weights: str | None = None
    ) -> list[Runner]:
        """Channels-last tensors for NHWC, contiguous ones for NCHW.

        Along one and three spatial axes channels last is not PyTorch's usual way, so there the
        contiguous tensors of an ordinary PyTorch program are tried as well.
        """
        if layout == "NCHW" or (isinstance(case, ResizeCase) and case.ndim == 1):
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
        order = WeightsOrder("OIHW", case.ndim)

        def tensor(array: np.ndarray, axes: tuple[int, ...]) -> Any:
            # Transposed on the device. Two bytes are handed over as integers, for NumPy has no bfloat16.
            bits = array.view(np.int16) if array.dtype.itemsize == 2 else array
            t = torch.from_numpy(np.array(bits, order="C")).to(device).view(dtype).permute(axes)
            return (t.unsqueeze(2) if widen else t).contiguous(memory_format=memory)

        def array(t: Any) -> np.ndarray:
            t = t.squeeze(2) if widen and t.ndim == 4 else t
            return t.to(torch.promote_types(t.dtype, torch.float32)).cpu().numpy()

        def weights_in(w: np.ndarray) -> np.ndarray:
            w = order.store(w)
            return _adjoint_weights(w, case, "OIHW") if case.transposed else w

        def weights_out(w: np.ndarray) -> np.ndarray:
            if case.transposed:
                # The exchange undoes itself once the two channel counts have changed places.
                back = dataclasses.replace(case, cin=case.cout, cout=case.cin)
                w = _adjoint_weights(w, back, "OIHW")
            return order.restore(w)

        def load(inputs: Inputs) -> tuple[Any, ...]:
            tensors = (
                tensor(inputs.x, to_x),
                tensor(weights_in(inputs.w), tuple(range(case.ndim + 2))),
                tensor(inputs.dy, to_x),
            )
            if on_gpu:
                torch.cuda.synchronize()
            return tensors

        def copy(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(t.clone() for t in tensors)

        if isinstance(case, ResizeCase):
            resize = resize_forms.torch_call(case, pass_)
            (key,) = RESULTS[pass_]
            return Runner(
                load,
                lambda tensors: resize(tensors[0], tensors[2]),
                lambda out: torch.cuda.synchronize() if on_gpu else None,
                lambda out: {key: array(out).transpose(from_x)},
                variant="channels last" if channels_last else "contiguous",
                copy=copy,
                gpu=_torch_gpu() if on_gpu else None,
            )

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

        @torch.enable_grad()
        def double_backward(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
            x, w = (t.detach().requires_grad_() for t in (x, w))
            y = forward(x, w, None, *window)
            (slope,) = torch.autograd.grad(y, x, y - dy, create_graph=True)
            return torch.autograd.grad(slope, (x, w), slope.detach())

        @torch.no_grad()
        def call(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
            x, w, dy = tensors
            if pass_ == "fprop":
                return (forward(x, w, None, *window),)
            if pass_ == "ddxddw":
                return double_backward(x, w, dy)
            return backward(dy, x, w, [case.cout] if mask[2] else None, *window, mask)

        def fetch(out: tuple[Any, ...]) -> dict[str, np.ndarray]:
            if pass_ == "fprop":
                return {"y": array(out[0]).transpose(from_x)}
            if pass_ == "ddxddw":
                ddx, ddw = map(array, out)
                return {"ddx": ddx.transpose(from_x), "ddw": weights_out(ddw)}
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
            copy=copy,
            gpu=_torch_gpu() if on_gpu else None,
        )


@functools.cache
def _torch_gpu() -> Gpu:
    return Gpu(TorchClock(), _torch_hold)


def _torch_hold() -> Any:
    product = square = _torch_square()
    for _ in range(HOLD_PRODUCTS):
        product = product @ square
    return product


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

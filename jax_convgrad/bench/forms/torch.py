"""PyTorch's own operators."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Any

import jax
import numpy as np

from jax_convgrad._src.timing.device_clock import TorchClock
from jax_convgrad._src.timing.processors import cpu_threads
from jax_convgrad._src.timing.runner import HOLD_PRODUCTS, HOLD_SIZE, Gpu, Runner
from jax_convgrad.bench.case_files import AnyCase
from jax_convgrad.bench.cases import DTYPES, Case
from jax_convgrad.bench.forms import resize as resize_forms
from jax_convgrad.bench.forms.form import RESULTS, Form
from jax_convgrad.bench.forms.inputs import Inputs
from jax_convgrad.bench.forms.weights import WeightsOrder, activation_axes, adjoint_weights
from jax_convgrad.bench.resize_cases import ResizeCase


class TorchForm(Form):
    """aten::convolution and aten::convolution_backward, which compute only the requested results.

    For a resize, interpolate and its backward operators.
    """

    name = "torch"

    def unavailable(self) -> str | None:
        """Why PyTorch cannot run: it is missing, or does not support the device that JAX runs on."""
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is not installed"
        platform = jax.default_backend()
        if platform == "cpu":
            return None
        import torch

        if platform != "gpu":
            return f"not compared on {platform}"
        return None if torch.cuda.is_available() else "this PyTorch sees no GPU"

    def not_applicable(self, case: AnyCase) -> str | None:
        """Why PyTorch cannot compute a case: it lacks some resizes, and negative padding."""
        if isinstance(case, ResizeCase):
            return resize_forms.torch_missing(case)
        return "PyTorch has no negative padding" if min(case.padding) < 0 else None

    def runners(
        self, case: AnyCase, pass_: str, layout: str, weights: str | None = None
    ) -> list[Runner]:
        """Channels-last tensors for NHWC, contiguous ones for NCHW.

        With one and three spatial axes channels last is unusual in PyTorch, so the contiguous tensors of an
        ordinary PyTorch program are tried there as well.
        """
        if layout == "NCHW" or (isinstance(case, ResizeCase) and case.ndim == 1):
            return [self._runner(case, pass_, channels_last=False)]
        runners = [self._runner(case, pass_, channels_last=True)]
        if case.ndim != 2:
            runners.append(self._runner(case, pass_, channels_last=False))
        return runners

    def _runner(self, case: AnyCase, pass_: str, channels_last: bool) -> Runner:
        import torch

        on_gpu = jax.default_backend() == "gpu"
        device = torch.device("cuda" if on_gpu else "cpu")
        torch.backends.cudnn.benchmark = True
        if not on_gpu:
            torch.set_num_threads(cpu_threads())
        dtype = getattr(torch, DTYPES[case.dtype])

        # PyTorch has no channels-last order of three-dimensional tensors: one spatial axis becomes two.
        widen = channels_last and case.ndim == 1
        formats = {1: torch.channels_last, 2: torch.channels_last, 3: torch.channels_last_3d}
        memory = formats[case.ndim] if channels_last else torch.contiguous_format
        to_x, from_x = activation_axes(case.ndim, "NCHW")
        order = WeightsOrder("OIHW", case.ndim)
        transposed = case if isinstance(case, Case) and case.transposed else None

        def tensor(array: np.ndarray, axes: tuple[int, ...]) -> Any:
            # Transposed on the device. Two-byte elements are handed over as integers, because NumPy has no
            # bfloat16.
            bits = array.view(np.int16) if array.dtype.itemsize == 2 else array
            t = torch.from_numpy(np.array(bits, order="C")).to(device).view(dtype).permute(axes)
            return (t.unsqueeze(2) if widen else t).contiguous(memory_format=memory)

        def array(t: Any) -> np.ndarray:
            t = t.squeeze(2) if widen and t.ndim == 4 else t
            wide = t.to(torch.promote_types(t.dtype, torch.float32))
            values: np.ndarray = wide.cpu().numpy()
            return values

        def weights_in(w: np.ndarray) -> np.ndarray:
            w = order.store(w)
            return w if transposed is None else adjoint_weights(w, transposed, "OIHW")

        def weights_out(w: np.ndarray) -> np.ndarray:
            if transposed is not None:
                # The exchange is its own inverse, with the two channel counts exchanged.
                cin, cout = transposed.cout, transposed.cin
                back = dataclasses.replace(transposed, cin=cin, cout=cout)
                w = adjoint_weights(w, back, "OIHW")
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
                gpu=torch_gpu() if on_gpu else None,
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

        def double_backward(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
            with torch.enable_grad():
                x, w = (t.detach().requires_grad_() for t in (x, w))
                y = forward(x, w, None, *window)
                (slope,) = torch.autograd.grad(y, x, y - dy, create_graph=True)
                results: tuple[Any, ...] = torch.autograd.grad(slope, (x, w), slope.detach())
                return results

        def call(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
            x, w, dy = tensors
            with torch.no_grad():
                if pass_ == "fprop":
                    return (forward(x, w, None, *window),)
                if pass_ == "ddxddw":
                    return double_backward(x, w, dy)
                bias_sizes = [case.cout] if mask[2] else None
                results: tuple[Any, ...] = backward(dy, x, w, bias_sizes, *window, mask)
                return results

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
            gpu=torch_gpu() if on_gpu else None,
        )


@functools.cache
def torch_gpu() -> Gpu:
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

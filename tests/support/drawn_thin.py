"""Random convolutions that the thin CUDA kernels serve, as calls of the handlers, and their engines' names.

The weights lie in either order that the kernels read. Each family of kernels has its own draw, in which its
limits are met: padded, cropped and unread windows, odd steps, channels and columns that fill no tile.
thin/plan.h says what each serves.
"""

from __future__ import annotations

import math

import numpy as np
from support.conv_cases import Case
from support.drawn_convs import Call

from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.dispatch.problem import ConvProblem

_MAX_PRODUCTS = 4_000_000
_MAX_ROWS = 18  # of an image that a row of windows reads: an H100's shared memory holds them
_SHARED_BYTES = 227 * 1024  # of a block on an H100
_HALVES = ("float16", "bfloat16")
# Of images, floats have kernels of their own on an H100.
_DTYPES = (*_HALVES, "float32", "float32")
_WINDOWS = (
    *(f"windows_{tile}" for tile in ("128x128", "128x64", "128x128_by_4")),
    *(
        f"windows_warpgroup_{tile}"
        for tile in ("128x256", "192x192", "128x192", "128x128", "128x256_by_4")
    ),
)
_WINDOWS_WGRAD = (
    *(f"windows_wgrad_{tile}" for tile in ("128x128", "64x128", "128x128_by_4")),
    *(f"windows_wgrad_warpgroup_{tile}" for tile in ("128x256", "128x128", "128x256_by_4")),
)
_IMAGES = {
    name: tuple(f"{name}{way}{threads}" for way in ("", "_warpgroup") for threads in ("", "_512"))
    for name in ("image", "image_dgrad")
}
# The engines that may serve an operator. Which of them serve a problem, the handler says.
ENGINES = {
    operator: tuple(f"native_thin_{name}" for name in names)
    for operator, names in {
        "conv_fprop": (*_WINDOWS, *_IMAGES["image"], "few_outputs", "few_outputs_alone"),
        "conv_dgrad": (*_WINDOWS, *_IMAGES["image_dgrad"], "few_outputs", "few_outputs_alone"),
        "conv_wgrad": (*_WINDOWS_WGRAD, "image_wgrad", "few_outputs_wgrad"),
    }.items()
}


def draw(rng: np.random.Generator) -> Call:
    """An operator on small integers, channels last. Its exact result is the sum rounded once."""
    while True:
        family = _FAMILIES[rng.integers(len(_FAMILIES))]
        operator, case = family(rng)
        dtype = str(rng.choice(_HALVES if family in (_windows, _large_windows) else _DTYPES))
        if case.x[0] * math.prod(case.w) * math.prod(case.y[2:]) > _MAX_PRODUCTS:
            continue
        shared_bytes = _SHARED_BYTES_OF.get(family)
        if shared_bytes and shared_bytes(operator, case, dtype) > _SHARED_BYTES:
            continue
        return Call.of(rng, operator, case, dtype, dtype)


def workspace_limit(rng: np.random.Generator, call: Call) -> int:
    """Bytes for the partial sums of one, three or very many parts of a weight gradient."""
    return 4 * math.prod(call.case.w) * _of(rng, (1, 3, 100))


def weights_order(call: Call) -> str:
    """Of a call's weights: the attribute `weights` of its handler."""
    return "OXI" if call.case.layout[1].startswith("O") else "XIO"


def _windows(rng: np.random.Generator) -> tuple[str, Case]:
    """Windows side by side; behind them may be what none of them reads, except for dgrad."""
    operator = _windows_operator(rng)
    axes = int(rng.integers(1, 4))
    kernel = [_of(rng, (1, 2, 2, 3, 4, 8) if axes == 1 else (1, 2, 2, 3, 4)) for _ in range(axes)]
    most = (0, 300, 24, 8)[axes]
    rest = [_of(rng, range(k)) if operator != "conv_dgrad" else 0 for k in kernel]
    spatial = [int(rng.integers(1, most)) * k + r for k, r in zip(kernel, rest, strict=True)]
    channels = 8 * int(rng.integers(1, 21)) if rng.random() < 0.6 else int(rng.integers(1, 13))
    # Rows of a window, and of the image, have an even number of elements.
    if channels % 2 and (kernel[-1] % 2 or spatial[-1] % 2):
        channels += 1
    outputs = 8 * int(rng.integers(1, 26))
    return operator, _case(rng, channels, outputs, spatial, kernel, strides=kernel)


def _windows_operator(rng: np.random.Generator) -> str:
    """wgrad has a tile of its own for each of its engines."""
    return str(rng.choice(list(ENGINES), p=(0.3, 0.3, 0.4)))


def _large_windows(rng: np.random.Generator) -> tuple[str, Case]:
    """Few windows, of many elements and many output channels: long sums, and several tiles' columns."""
    operator = _windows_operator(rng)
    kernel, channels = (7, _of(rng, (2, 6, 10))) if rng.random() < 0.6 else (4, _of(rng, (24, 32)))
    spatial = [kernel * int(rng.integers(1, 4)) for _ in range(2)]
    outputs = 8 * int(rng.integers(17, 65))
    return operator, _case(rng, channels, outputs, spatial, [kernel] * 2, strides=[kernel] * 2)


def _image(rng: np.random.Generator) -> tuple[str, Case]:
    """fprop or wgrad, a thin x."""
    operator = str(rng.choice(["conv_fprop", "conv_wgrad"]))
    spatial, kernel, dilation, padding = _geometry(rng)
    channels, outputs = _few_of(rng, kernel), _many(rng)
    strides = [_of(rng, (1, 1, 2, 2, 3, 4, 5)) for _ in kernel]
    return operator, _case(rng, channels, outputs, spatial, kernel, strides, dilation, padding)


def _deep_image(rng: np.random.Generator) -> tuple[str, Case]:
    """fprop or wgrad of a thin x, large windows with three axes: a tile's planes come one after the other."""
    operator = "conv_fprop" if rng.random() < 0.7 else "conv_wgrad"
    channels, outputs = _of(rng, (1, 2, 3)), _of(rng, (3, 8, 12))
    kernel = [int(rng.integers(5, 8)) for _ in range(3)]
    strides = [1, int(rng.integers(1, 3)), int(rng.integers(1, 3))]
    windows = [int(rng.integers(1, 3)), int(rng.integers(1, 6)), int(rng.integers(20, 60))]
    padding = [(int(rng.integers(0, 4)), int(rng.integers(0, 4))) for _ in kernel]
    sizes = zip(windows, strides, kernel, padding, strict=True)
    spatial = [max(1, (n - 1) * s + k - sum(p)) for n, s, k, p in sizes]
    return operator, _case(rng, channels, outputs, spatial, kernel, strides, (), padding)


def _of_image(rng: np.random.Generator) -> tuple[str, Case]:
    """dgrad or wgrad, a thin y, stride 1: y's gradient is the image."""
    operator = "conv_dgrad" if rng.random() < 0.7 else "conv_wgrad"
    spatial, kernel, dilation, padding = _geometry(rng)
    channels, outputs = _many(rng), _few_of(rng, kernel)
    return operator, _case(rng, channels, outputs, spatial, kernel, (), dilation, padding)


def _few_outputs(rng: np.random.Generator) -> tuple[str, Case]:
    """fprop or dgrad, a thin result."""
    operator = str(rng.choice(["conv_fprop", "conv_dgrad"]))
    spatial, kernel, dilation, padding = _geometry(rng)
    few, others = min(_few_of(rng, kernel), 32 // kernel[-1]), 8 * int(rng.integers(1, 10))
    if rng.random() < 0.3:
        dilation[-1] = int(rng.integers(2, 5))
        spatial[-1] += dilation[-1] * kernel[-1]
    strides = [_of(rng, (1, 1, 2, 2, 3, 4)) for _ in kernel]
    channels, outputs = (others, few) if operator == "conv_fprop" else (few, others)
    return operator, _case(rng, channels, outputs, spatial, kernel, strides, dilation, padding)


def _few_outputs_alone(rng: np.random.Generator) -> tuple[str, Case]:
    """The same with so many weights that an H100's multiprocessor has room for one block alone."""
    operator = str(rng.choice(["conv_fprop", "conv_dgrad"]))
    kernel = [int(rng.integers(2, 6)) for _ in range(int(rng.integers(2, 4)))]
    few = min(_few(rng), 24 // kernel[-1])
    step_bytes = math.prod(kernel[:-1]) * -(-few * kernel[-1] // 8) * 512  # of 32 channels
    others = 32 * max(1, int(rng.integers(90_000, 190_000)) // step_bytes)
    others -= 8 * int(rng.integers(0, 4))
    padding = [(int(rng.integers(0, k)), int(rng.integers(0, k))) for k in kernel]
    spatial = [k + int(rng.integers(0, 4)) for k in kernel]
    channels, outputs = (others, few) if operator == "conv_fprop" else (few, others)
    return operator, _case(rng, channels, outputs, spatial, kernel, (), (), padding)


def _few_outputs_bytes(operator: str, case: Case, dtype: str) -> int:
    """Shared memory of few_outputs.cuh's smallest tile: two stages, its pixels' products, all weights."""
    outputs, channels, *kernel = case.w
    read = [(k - 1) * d for k, d in zip(kernel, case.dilation or [1] * len(kernel), strict=True)]
    if operator == "conv_dgrad":
        outputs, channels = channels, outputs
        read = [r // s for r, s in zip(read, case.strides or [1] * len(kernel), strict=True)]
    pixels = 32
    while pixels <= read[-1]:
        pixels *= 2
    columns = -(-outputs * kernel[-1] // 8)
    steps = -(-channels // (16 if dtype == "float32" else 32))
    rows = read[-2] + 1 if len(kernel) > 1 else 1
    stages = 2 * rows * pixels * 64
    products = pixels * 8 * (columns | 1) * 4
    return stages + products + math.prod(kernel[:-1]) * steps * columns * 512 + 32


def _image_bytes(operator: str, case: Case, dtype: str) -> int:
    """Shared memory of image.cuh's smallest tile: a window, one stage, all weights and their table."""
    if operator == "conv_wgrad":
        return 0  # whose kernel holds no weights
    few = case.w[1 if operator == "conv_fprop" else 0]
    kernel = case.w[2:]
    dilation = case.dilation or [1] * len(kernel)
    unit = 4 if dtype == "float32" else 8  # elements of 16 bytes
    lead = unit // 8  # where the window's first element is the second of a word
    run_units = -(-(kernel[-1] * few + lead) // unit)
    step_rows = kernel[-2] if len(kernel) > 1 else 1
    units = math.prod(kernel[:-2]) * 2 * -(-step_rows * run_units // 2)
    rows = (kernel[-2] - 1) * dilation[-2] + 1 if len(kernel) > 1 else 1
    stage = rows * (run_units + 2) * 16 + 16  # of a plane
    return stage + units * 64 * 16 + units * 64 + 16 * 5


# Windows often: half of the engines are theirs.
_FAMILIES = (
    *(_windows,) * 7,
    *(_large_windows, _large_windows),
    *(_image, _image, _deep_image),
    *(_of_image,) * 4,
    *(_few_outputs, _few_outputs_alone),
)
_SHARED_BYTES_OF = {
    _image: _image_bytes,
    _deep_image: _image_bytes,
    _of_image: _image_bytes,
    _few_outputs: _few_outputs_bytes,
    _few_outputs_alone: _few_outputs_bytes,
}


def _few_of(rng: np.random.Generator, kernel: list[int]) -> int:
    """Of windows of one tap also more, if libraries have to pad them."""
    if math.prod(kernel) == 1 and rng.random() < 0.5:
        return _of(rng, (17, 21, 30))
    return _few(rng)


def _few(rng: np.random.Generator) -> int:
    return _of(rng, (1, 1, 2, 3, 3, 3, 4, 5, 8, 12, 16))


def _many(rng: np.random.Generator) -> int:
    """Channels of the other side, any number of them."""
    return int(rng.integers(1, 71)) if rng.random() < 0.3 else 8 * int(rng.integers(1, 18))


def _geometry(
    rng: np.random.Generator,
) -> tuple[list[int], list[int], list[int], list[tuple[int, int]]]:
    """Sizes, a window, its dilation (none along x) and padding, of one to three axes."""
    axes = int(rng.integers(1, 4))
    most_kernel, most_extra = ((), (19, 900), (9, 50), (4, 10))[axes]
    spatial, padding = [], []
    while True:
        most = 1 if rng.random() < 0.1 else most_kernel
        kernel = [int(rng.integers(1, most + 1)) for _ in range(axes)]
        dilation = [1 if rng.random() < 0.6 else int(rng.integers(2, 4)) for _ in range(axes)]
        dilation[-1] = 1
        lines = (kernel[-2] - 1) * dilation[-2] + 1 if axes > 1 else 1
        if math.prod(kernel[:-2]) * lines <= _MAX_ROWS:
            break
    for k, d in zip(kernel, dilation, strict=True):
        window = (k - 1) * d + 1
        low, high = (int(rng.integers(0, window)) for _ in range(2))
        padding.append((low, high))
        spatial.append(max(1, window - low - high) + int(rng.integers(0, most_extra)))
    return spatial, kernel, dilation, padding


def _case(
    rng: np.random.Generator,
    channels: int,
    outputs: int,
    spatial: list[int],
    kernel: list[int],
    strides: list[int] | tuple[int, ...],
    dilation: list[int] | tuple[int, ...] = (),
    padding: list[tuple[int, int]] | None = None,
) -> Case:
    letters = "DHW"[-len(kernel) :]
    batch = int(rng.integers(1, 4))
    weights = f"O{letters}I" if rng.random() < 0.5 else f"{letters}IO"
    return Case(
        "thin",
        (batch, channels, *spatial),
        (outputs, channels, *kernel),
        tuple(strides),
        tuple(padding or [(0, 0)] * len(kernel)),
        tuple(dilation),
        layout=(f"N{letters}C", weights, f"N{letters}C"),
    )


def _of(rng: np.random.Generator, values: tuple[int, ...] | range) -> int:
    return int(values[rng.integers(len(values))])


def problem_of(call: Call) -> ConvProblem:
    """What the package calls the handler for."""
    case = call.case
    numbers = case.numbers
    config = ConvConfig(case.strides, case.pairs, case.dilation, case.groups, numbers)
    shapes = {}
    for name, canonical, spec in (("x", case.x, numbers.lhs_spec), ("w", case.w, numbers.rhs_spec)):
        shapes[name] = tuple(canonical[spec.index(axis)] for axis in range(len(spec)))
    geometry = ConvGeometry.make("drawn", config, shapes["x"], shapes["w"])
    return ConvProblem.make(call.operator, geometry, call.operands[0].dtype)

"""How the family's operators are divided among devices, where XLA divides a program (sharded `jit`).

XLA knows nothing of a handler's call: it would gather the operands of one on every device. Here each
operator says by which factors its arrays can be split: the batch n, groups g, input channels per group i,
output channels per group o, each spatial axis s0, s1, ... XLA tells how the arrays lie, `assign` settles
which mesh axes split which factor, and `local` functions compute one device's part by the operator's own
implementation, which chooses its route by the sizes that it sees.

    fprop(x: n gi s, w: go i k) -> y: n go s, summed over i
    dgrad(y: n go s, w: go i k) -> x: n gi s, summed over o
    wgrad(x: n gi s, y: n go s) -> w: go i k, summed over n and s

NOTE [Whose sharding counts]. Images stay where they are and weights are moved: the first operand's shardings
come first, and weights' last. What splits an axis of an image otherwise than this allows goes to the batch,
or the groups, if that divides: an exchange of blocks instead of a gathering of the whole. It goes there
before a convolution's weights and result have a say if all of it can; of mesh axes that only some can, what
those leave, as the image is gathered then anyway. How the result lies in the program around is settled
before, by Shardy, which has the larger of two arrays decide that want the same mesh axis: weights with more
elements than their image, split over the devices of the batch, split the result's channels.

NOTE [Spatial axes]. One is split where the image has stride times as many rows as the result and both
divide, so that every device needs the same few rows of its neighbours, no more than they have (`halo`).
fprop and wgrad run on x with those rows and without padding, dgrad on dy with the rows that reach into
its part of x. Other spatial axes, and the axes that a resize changes, are never split (see above).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import Array, lax

from jax_convgrad._src.conv.geometry import ConvConfig, ConvGeometry
from jax_convgrad._src.dispatch import routes
from jax_convgrad._src.resize.bands import Band
from jax_convgrad._src.runtime import registry, settings
from jax_convgrad._src.shapes import Shape
from jax_convgrad._src.sharding import halo

# The factors of each axis of an array, major to minor.
Factors = tuple[tuple[str, ...], ...]
# The mesh axes that each axis of an array is split over, major to minor.
Split = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Parts:
    """Which mesh axes split which factor. ``sizes`` are those of the mesh axes."""

    sizes: Mapping[str, int]
    chosen: Mapping[str, tuple[str, ...]]

    def names(self, *factors: str) -> tuple[str, ...]:
        """The mesh axes that split the factors."""
        return tuple(name for factor in factors for name in self.chosen.get(factor, ()))

    def count(self, *factors: str) -> int:
        """Into how many parts the factors are split."""
        return math.prod(self.sizes[name] for name in self.names(*factors))

    def places(self, factor: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The mesh axes that split a factor, in the mesh's order, and which device has which part."""
        names = self.names(factor)
        ordered = tuple(name for name in self.sizes if name in names)
        devices = np.arange(self.count(factor)).reshape([self.sizes[name] for name in ordered])
        return ordered, tuple(devices.transpose([*map(ordered.index, names)]).ravel().tolist())

    def split(self, array: Factors) -> Split:
        """How an array is split."""
        return tuple(self.names(*factors) for factors in array)


@dataclasses.dataclass(frozen=True)
class Division:
    """By what one call of an operator can be divided.

    Attributes:
      arrays: the operands' factors, then the result's.
      sizes: of each factor; several where the axes that share it have different ones.
      summed: factors that the result does not have: partial results are added up.
      fits: whether a factor can be split into so many equal parts.
      order: positions in ``arrays``, those first whose shardings come first, in turns: what those of the
        first turn cannot keep is taken over before the second has a say.
      spare: factors that take over mesh axes which cannot stay where they are.
      images: positions in ``arrays`` of the operands whose mesh axes are taken over.
      local: from the parts to the function of one device.
      fingerprint: calls of the same fingerprint have the same parts.
    """

    arrays: tuple[Factors, ...]
    sizes: Mapping[str, tuple[int, ...]]
    summed: tuple[str, ...]
    fits: Callable[[str, int], bool]
    order: tuple[tuple[int, ...], ...]
    spare: tuple[str, ...]
    images: tuple[int, ...]
    local: Callable[[Parts], Callable[..., Array]]
    fingerprint: Callable[[], str]

    def divide(
        self, sizes: Mapping[str, int], splits: Sequence[Split]
    ) -> tuple[Callable[..., Array], list[Split]]:
        """One device's function, and how operands and result are to be split for it.

        Args:
          sizes: the mesh axes.
          splits: how operands and result are split in the program around.
        """
        parts = Parts(sizes, assign(self, sizes, splits))
        return self.local(parts), [parts.split(array) for array in self.arrays]

    def carry(
        self, sizes: Mapping[str, int], splits: Sequence[Split]
    ) -> tuple[Split, dict[int, Split]]:
        """What becomes of the operands' shardings where they are part of types.

        Returns:
          How the result is split, and for each operand that cannot stay as it is how it would have to be.
        """
        parts = self._carried(sizes, splits)
        moved = {
            position: parts.split(array)
            for position, (array, split) in enumerate(zip(self.arrays, splits, strict=False))
            if any(set(names) - set(parts.names(*f)) for f, names in zip(array, split, strict=True))
        }
        return parts.split(self.arrays[-1]), moved

    def summed_over(self, sizes: Mapping[str, int], splits: Sequence[Split]) -> tuple[str, ...]:
        """The mesh axes, where shardings are part of types, that split what is summed over."""
        return self._carried(sizes, splits).names(*self.summed)

    def _carried(self, sizes: Mapping[str, int], splits: Sequence[Split]) -> Parts:
        # A symbolic size divides as its user says it does.
        divisible = math.prod(sizes.values())
        known = {
            factor: tuple(s if isinstance(s, int) else divisible for s in those)
            for factor, those in self.sizes.items()
        }
        plain = dataclasses.replace(
            self,
            sizes=known,
            fits=lambda factor, count: all(size % count == 0 for size in known[factor]),
            order=tuple(tuple(i for i in turn if i < len(splits)) for turn in self.order),
            spare=(),
            images=(),
        )
        return Parts(sizes, assign(plain, sizes, splits))


def assign(
    division: Division, sizes: Mapping[str, int], splits: Sequence[Split]
) -> dict[str, tuple[str, ...]]:
    """For each factor that is split the mesh axes, see NOTE [Whose sharding counts]."""
    chosen: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()

    def give(factor: str, names: tuple[str, ...]) -> bool:
        if not division.fits(factor, math.prod(sizes[name] for name in names)):
            return False
        chosen[factor] = names
        used.update(names)
        return True

    def keep(positions: Iterable[int], avoided: set[str]) -> None:
        """Lets these arrays' axes be split as they are, by mesh axes that are not taken yet."""
        for position in positions:
            for factor, names in _dealt(division, sizes, splits, position):
                taken = used | avoided
                free = next((i for i, name in enumerate(names) if name in taken), len(names))
                if factor not in chosen:
                    any(give(factor, names[:stop]) for stop in range(free, 0, -1))
        for factors in (factors for array in division.arrays for factors in array):
            for major, minor in itertools.pairwise(factors):
                whole = math.prod(sizes[name] for name in chosen.get(major, ()))
                if minor in chosen and whole != division.sizes[major][0]:
                    used.difference_update(chosen.pop(minor))

    def take_over(names: tuple[str, ...]) -> None:
        left = tuple(name for name in names if name not in used)
        if left:
            any(give(factor, (*chosen.get(factor, ()), *left)) for factor in division.spare)

    split_images = [names for position in division.images for names in splits[position]]
    everything = tuple(itertools.chain(*division.order))
    contested = _contested(division, sizes, splits)
    keep(division.order[0], avoided=contested)
    for names in split_images:
        take_over(names)
    keep(everything, avoided=contested)
    for name in itertools.chain(*split_images):
        take_over((name,))
    keep(everything, avoided=set())
    return chosen


def _contested(division: Division, sizes: Mapping[str, int], splits: Sequence[Split]) -> set[str]:
    """Mesh axes that split two images along different factors: one would have to be gathered."""
    wanted: dict[str, set[str]] = {}
    for position in division.images:
        for factor, names in _dealt(division, sizes, splits, position):
            for name in names:
                wanted.setdefault(name, set()).add(factor)
    return {name for name, factors in wanted.items() if len(factors) > 1}


def _dealt(
    division: Division, sizes: Mapping[str, int], splits: Sequence[Split], position: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The factors of an array and their mesh axes: a minor factor has some where the major one is all."""
    for factors, axes in zip(division.arrays[position], splits[position], strict=True):
        names = list(axes)
        for factor in factors:
            left, part = math.gcd(*division.sizes[factor]), []
            while names and left % sizes[names[0]] == 0:
                left //= sizes[names[0]]
                part.append(names.pop(0))
            yield factor, tuple(part)
            if left > 1:
                break


# Convolutions.

# An operator's implementation: of the arrays and the primitive's parameters.
Implementation = Callable[..., Array]


def conv_fprop(
    implementation: Implementation, platform: str, x: Any, w: Any, **params: Any
) -> Division:
    """The division of one call, lowered for ``platform``; ``params`` are the primitive's."""
    geometry = ConvGeometry.make("conv_fprop", params["config"], x.shape, w.shape)
    halos = _halos_of_x(geometry)

    def local(parts: Parts, params: dict[str, Any]) -> Callable[..., Array]:
        changed = params | {"config": _local_config(geometry, halos, parts)}

        def run(x: Array, w: Array) -> Array:
            return implementation(_extend(x, "x", geometry, halos, parts), w, **changed)

        return run

    return _conv("conv_fprop", "xwy", ("x", "yw"), ("i",), geometry, halos, local, platform, params)


def conv_dgrad(
    implementation: Implementation, platform: str, dy: Any, w: Any, **params: Any
) -> Division:
    geometry = ConvGeometry.make("conv_dgrad", params["config"], params["x_shape"], w.shape)
    halos = _halos_of_y(geometry)

    def local(parts: Parts, params: dict[str, Any]) -> Callable[..., Array]:
        changed = params | {
            "config": _local_config(geometry, halos, parts),
            "x_shape": _local_shape("x", geometry, parts),
        }

        def run(dy: Array, w: Array) -> Array:
            return implementation(_extend(dy, "y", geometry, halos, parts), w, **changed)

        return run

    return _conv("conv_dgrad", "ywx", ("y", "xw"), ("o",), geometry, halos, local, platform, params)


def conv_wgrad(
    implementation: Implementation, platform: str, x: Any, dy: Any, **params: Any
) -> Division:
    geometry = ConvGeometry.make("conv_wgrad", params["config"], x.shape, params["w_shape"])
    halos = _halos_of_x(geometry)

    def local(parts: Parts, params: dict[str, Any]) -> Callable[..., Array]:
        changed = params | {
            "config": _local_config(geometry, halos, parts),
            "w_shape": _local_shape("w", geometry, parts),
        }

        def run(x: Array, dy: Array) -> Array:
            return implementation(_extend(x, "x", geometry, halos, parts), dy, **changed)

        return run

    summed = ("n", *_spatial(geometry))
    return _conv("conv_wgrad", "xyw", ("xy", "w"), summed, geometry, halos, local, platform, params)


def _conv(
    operator: str,
    roles: str,
    order: tuple[str, ...],
    summed: tuple[str, ...],
    geometry: ConvGeometry,
    halos: tuple[_Halo, ...],
    local: Callable[[Parts, dict[str, Any]], Callable[..., Array]],
    platform: str,
    params: dict[str, Any],
) -> Division:
    """``roles`` are the operands and the result among x, w and y, ``order`` as in `Division`."""
    sizes = _sizes(geometry)
    extended = geometry.out_spatial if operator == "conv_dgrad" else geometry.in_spatial
    forced = routes.forced()
    carried = settings.snapshot() if platform == "cuda" else None

    def fits(factor: str, count: int) -> bool:
        if factor not in sizes or any(size % count for size in sizes[factor]):
            return False
        if factor not in _spatial(geometry):
            return factor[0] != "k"
        axis = int(factor[1:])
        low, high, _ = halos[axis]
        apart = geometry.in_spatial[axis] == (
            geometry.config.strides[axis] * geometry.out_spatial[axis]
        )
        return apart and halo.fits(extended[axis] // count, low, high)

    def summing(parts: Parts) -> Callable[..., Array]:
        names = parts.names(*summed)
        if not names:
            return local(parts, params)
        dtype = params["preferred_element_type"]
        wide = dtype
        if platform == "cpu" and np.dtype(dtype).itemsize == 2:
            wide = np.dtype(np.float32)  # which XLA:CPU adds 16-bit numbers of several devices in
        run = local(parts, params | {"preferred_element_type": wide})
        return lambda *operands: lax.psum(run(*operands), names).astype(dtype)

    return Division(
        arrays=tuple(_factors(role, geometry) for role in roles),
        sizes=sizes,
        summed=summed,
        fits=fits,
        order=tuple(tuple(map(roles.index, turn)) for turn in order),
        spare=("n", "g"),
        images=tuple(i for i, role in enumerate(roles[:2]) if role != "w"),
        local=lambda parts: _routed(summing(parts), forced, carried),
        fingerprint=lambda: _fingerprint(
            operator, platform, geometry, sorted(params.items()), carried
        ),
    )


def _spatial(geometry: ConvGeometry) -> tuple[str, ...]:
    return tuple(f"s{axis}" for axis in range(geometry.spatial_rank))


def _sizes(geometry: ConvGeometry) -> dict[str, tuple[int, ...]]:
    groups = geometry.config.groups
    sizes = {
        "n": (geometry.batch,),
        "g": (groups,),
        "i": (geometry.in_channels // groups,),
        "o": (geometry.out_channels // groups,),
    }
    for axis, (x, y, k) in enumerate(
        zip(geometry.in_spatial, geometry.out_spatial, geometry.kernel, strict=True)
    ):
        sizes |= {f"s{axis}": (x, y), f"k{axis}": (k,)}
    return sizes


def _factors(role: str, geometry: ConvGeometry) -> Factors:
    """The factors of x, w or y, in the order of its axes."""
    numbers, sizes = geometry.config.dimension_numbers, _sizes(geometry)

    def both(group: str, channel: str) -> tuple[str, ...]:
        """An axis of channels, without the one of its two factors that is 1."""
        return tuple(f for f in (group, channel) if sizes[f] != (1,)) or (channel,)

    spatial = tuple((factor,) for factor in _spatial(geometry))
    if role == "w":
        spec = numbers.rhs_spec
        named = (both("g", "o"), ("i",), *((f"k{axis}",) for axis in range(len(spatial))))
    elif role == "x":
        spec, named = numbers.lhs_spec, (("n",), both("g", "i"), *spatial)
    else:
        spec, named = numbers.out_spec, (("n",), both("g", "o"), *spatial)
    placed = dict(zip(spec, named, strict=True))
    return tuple(placed[axis] for axis in range(len(spec)))


def _local_shape(role: str, geometry: ConvGeometry, parts: Parts) -> Shape:
    """The shape of one device's part of x or w."""
    whole = geometry.x_shape if role == "x" else geometry.w_shape
    factors = _factors(role, geometry)
    return tuple(size // parts.count(*f) for size, f in zip(whole, factors, strict=True))


class _Halo(NamedTuple):
    """For one spatial axis that is split: what a device's part is extended by, and its padding then."""

    low: int
    high: int
    padding: tuple[int, int]


def _halos_of_x(geometry: ConvGeometry) -> tuple[_Halo, ...]:
    """Window j of a part starts ``low`` rows before row j * stride of it."""
    config = geometry.config
    return tuple(
        _Halo(low, kernel - stride - low, (0, 0))
        for (low, _), kernel, stride in zip(
            config.padding, geometry.dilated_kernel, config.strides, strict=True
        )
    )


def _halos_of_y(geometry: ConvGeometry) -> tuple[_Halo, ...]:
    """The windows that read any row of a part of x: those of its own rows of y and some around them."""
    config = geometry.config
    halos = []
    for (low, _), kernel, stride in zip(
        config.padding, geometry.dilated_kernel, config.strides, strict=True
    ):
        before, behind = (kernel - 1 - low) // stride, -(-low // stride)
        padding = (low + before * stride, (behind - 1) * stride + kernel - low)
        halos.append(_Halo(before, behind, padding))
    return tuple(halos)


def _local_config(geometry: ConvGeometry, halos: tuple[_Halo, ...], parts: Parts) -> ConvConfig:
    config = geometry.config
    padding = tuple(
        extension.padding if parts.names(factor) else pair
        for factor, extension, pair in zip(_spatial(geometry), halos, config.padding, strict=True)
    )
    return config.replace(padding=padding, groups=config.groups // parts.count("g"))


def _extend(
    image: Array, role: str, geometry: ConvGeometry, halos: tuple[_Halo, ...], parts: Parts
) -> Array:
    """One device's part of x or y with its neighbours' rows along the axes that are split."""
    numbers = geometry.config.dimension_numbers
    spec = numbers.lhs_spec if role == "x" else numbers.out_spec
    for factor, axis, (low, high, _) in zip(_spatial(geometry), spec[2:], halos, strict=True):
        if parts.names(factor):
            image = halo.extend(image, axis, low, high, *parts.places(factor))
    return image


# Resizes.


def resample(
    implementation: Implementation,
    platform: str,
    x: Any,
    *,
    bands: tuple[Band, ...],
    axes: tuple[int, ...],
) -> Division:
    """An axis that is resized is not split; the devices take some of another one, or all of it."""
    factors = tuple((f"a{axis}",) for axis in range(len(x.shape)))
    sizes = {f"a{axis}": (size,) for axis, size in enumerate(x.shape)}
    resized = {f"a{axis}": band.out_size for axis, band in zip(axes, bands, strict=True)}
    for factor, size in resized.items():
        sizes[factor] = (*sizes[factor], size)

    forced = routes.forced()

    def local(parts: Parts) -> Callable[..., Array]:
        return _routed(lambda x: implementation(x, bands=bands, axes=axes), forced)

    def fingerprint() -> str:
        tables = [band.digest.hex() for band in bands]
        return _fingerprint("resample", platform, x.shape, str(x.dtype), tables, axes)

    return Division(
        arrays=(factors, factors),
        sizes=sizes,
        summed=(),
        fits=lambda factor, count: factor not in resized and sizes[factor][0] % count == 0,
        order=((0, 1),),
        spare=tuple(factor for (factor,) in factors),
        images=(0,),
        local=local,
        fingerprint=fingerprint,
    )


# What an operator's call is lowered with is settled before XLA asks for the parts, in another thread.


def _routed(
    run: Callable[..., Array], forced: str | None, carried: settings.Settings | None = None
) -> Callable[..., Array]:
    """``run`` with the route that was forced, if any, and the settings when the call was lowered."""

    def routed(*operands: Array) -> Array:
        with contextlib.ExitStack() as stack:
            if routes.forced() != forced:
                stack.enter_context(routes.force(forced))
            if carried is not None:
                stack.enter_context(settings.override(carried))
            return run(*operands)

    return routed


def _fingerprint(operator: str, platform: str, *problem: Any) -> str:
    """The same for calls whose parts are computed by the same program, in every process."""
    found = registry.require(platform)
    versions = registry.version(), found.versions, sorted(found.targets), sorted(found.dtypes)
    decisive = operator, platform, problem, versions, routes.forced()
    return hashlib.sha256(repr(decisive).encode()).hexdigest()

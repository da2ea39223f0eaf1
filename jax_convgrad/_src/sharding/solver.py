"""How an operator is divided among devices, where XLA divides a program (sharded `jit`).

XLA knows nothing about a handler's call: it would gather the call's operands on every device. Each operator
therefore states a `ShardingRule`: the factors by which its arrays can be split, as in an einsum (the batch,
the groups, a spatial axis). XLA passes the arrays' shardings, `solve` settles which mesh axes split which
factor, and the operator's own function computes the shard of one device.

NOTE [Whose sharding counts]. Images stay where they are and weights move: the first operand's sharding
comes first, and the weights' last. If an image is sharded along an axis that the rule cannot split, that
mesh axis moves to a fallback factor (the batch, or the groups) if it divides it: devices exchange blocks
instead of gathering the whole. If all mesh axes of such an image axis can move, they move before the
shardings of the weights and of the result are considered. If only some of them can, these move if the
weights and the result leave them free, because the image is gathered anyway. Shardy has settled the
result's sharding in the surrounding program before: if two arrays want the same mesh axis, the larger one
decides. If the weights have more elements than their image and are split over the devices of the batch,
they split the result's channels.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jax import Array

# The factors of each axis of an array, major to minor.
Factors = tuple[tuple[str, ...], ...]
# The mesh axes that each axis of an array is split over, major to minor.
ArraySharding = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Which mesh axes split which factor. ``sizes`` are those of the mesh axes."""

    sizes: Mapping[str, int]
    chosen: Mapping[str, tuple[str, ...]]

    def names(self, *factors: str) -> tuple[str, ...]:
        """The mesh axes that split these factors."""
        return tuple(name for factor in factors for name in self.chosen.get(factor, ()))

    def count(self, *factors: str) -> int:
        """The number of shards that the factors are split into."""
        return math.prod(self.sizes[name] for name in self.names(*factors))

    def device_order(self, factor: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The mesh axes that split a factor, in the mesh's order, and which device has which shard."""
        names = self.names(factor)
        ordered = tuple(name for name in self.sizes if name in names)
        devices = np.arange(self.count(factor)).reshape([self.sizes[name] for name in ordered])
        return ordered, tuple(devices.transpose([*map(ordered.index, names)]).ravel().tolist())

    def sharding_of(self, array: Factors) -> ArraySharding:
        """The split of an array."""
        return tuple(self.names(*factors) for factors in array)


@dataclasses.dataclass(frozen=True)
class ShardingRule:
    """The factors by which one operator can be divided.

    Attributes:
      arrays: the operands' factors, then the result's.
      sizes: the size of each factor; several where the axes that share it have different sizes.
      summed: factors that the result does not have: partial results are added up.
      fits: whether a factor can be split into a number of equal shards.
      order: positions in ``arrays``, in the order in which their shardings count, in turns: mesh axes that
        the arrays of the first turn cannot keep move to fallback factors before the second turn.
      fallback_factors: take over mesh axes that cannot stay where they are.
      images: positions in ``arrays`` of the operands whose mesh axes are taken over.
    """

    arrays: tuple[Factors, ...]
    sizes: Mapping[str, tuple[int, ...]]
    summed: tuple[str, ...]
    fits: Callable[[str, int], bool]
    order: tuple[tuple[int, ...], ...]
    fallback_factors: tuple[str, ...]
    images: tuple[int, ...]

    def propagate(
        self, sizes: Mapping[str, int], shardings: Sequence[ArraySharding]
    ) -> tuple[ArraySharding, dict[int, ArraySharding]]:
        """The shardings that follow from the operands' where shardings are part of types (Explicit meshes).

        Returns:
          How the result is split, and for each operand that cannot keep its sharding the one that it would
          need.
        """
        found = self._solve_types(sizes, shardings)
        changed = {
            position: found.sharding_of(array)
            for position, (array, given) in enumerate(zip(self.arrays, shardings, strict=False))
            if any(set(names) - set(found.names(*f)) for f, names in zip(array, given, strict=True))
        }
        return found.sharding_of(self.arrays[-1]), changed

    def summed_over(
        self, sizes: Mapping[str, int], shardings: Sequence[ArraySharding]
    ) -> tuple[str, ...]:
        """The mesh axes that split a factor that is summed over, where shardings are part of types."""
        return self._solve_types(sizes, shardings).names(*self.summed)

    def _solve_types(
        self, sizes: Mapping[str, int], shardings: Sequence[ArraySharding]
    ) -> Assignment:
        # A symbolic size is taken to be divisible, as its user promises.
        divisible = math.prod(sizes.values())
        known = {
            factor: tuple(s if isinstance(s, int) else divisible for s in those)
            for factor, those in self.sizes.items()
        }
        without_fallback = dataclasses.replace(
            self,
            sizes=known,
            fits=lambda factor, count: all(size % count == 0 for size in known[factor]),
            order=tuple(tuple(i for i in turn if i < len(shardings)) for turn in self.order),
            fallback_factors=(),
            images=(),
        )
        return solve(without_fallback, sizes, shardings)


@dataclasses.dataclass(frozen=True)
class PartitionedCall:
    """One operator of a program that XLA partitions among devices.

    Attributes:
      rule: the factors by which it can be divided.
      shard: from the assignment to one device's function of the operands' shards.
      fingerprint: calls with the same fingerprint have the same programs for their shards, in every
        process.
    """

    rule: ShardingRule
    shard: Callable[[Assignment], Callable[..., Array]]
    fingerprint: Callable[[], str]

    def divide(
        self, sizes: Mapping[str, int], shardings: Sequence[ArraySharding]
    ) -> tuple[Callable[..., Array], list[ArraySharding]]:
        """One device's function, and how operands and result are to be split for it.

        Args:
          sizes: the mesh axes.
          shardings: how operands and result are split in the surrounding program.
        """
        found = solve(self.rule, sizes, shardings)
        return self.shard(found), [found.sharding_of(array) for array in self.rule.arrays]


def solve(
    rule: ShardingRule, sizes: Mapping[str, int], shardings: Sequence[ArraySharding]
) -> Assignment:
    """The mesh axes of each factor that is split; see NOTE [Whose sharding counts]."""
    chosen: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()

    def split(factor: str, names: tuple[str, ...]) -> bool:
        if not rule.fits(factor, math.prod(sizes[name] for name in names)):
            return False
        chosen[factor] = names
        used.update(names)
        return True

    def keep(positions: Iterable[int], avoided: set[str]) -> None:
        """Keeps the splits of these arrays' axes, as far as their mesh axes are not taken yet."""
        for position in positions:
            for factor, names in _mesh_axes_by_factor(rule, sizes, shardings, position):
                taken = used | avoided
                free = next((i for i, name in enumerate(names) if name in taken), len(names))
                if factor not in chosen:
                    any(split(factor, names[:stop]) for stop in range(free, 0, -1))
        for factors in (factors for array in rule.arrays for factors in array):
            for major, minor in itertools.pairwise(factors):
                whole = math.prod(sizes[name] for name in chosen.get(major, ()))
                if minor in chosen and whole != rule.sizes[major][0]:
                    used.difference_update(chosen.pop(minor))

    def take_over(names: tuple[str, ...]) -> None:
        unused = tuple(name for name in names if name not in used)
        if unused:
            any(
                split(factor, (*chosen.get(factor, ()), *unused))
                for factor in rule.fallback_factors
            )

    split_images = [names for position in rule.images for names in shardings[position]]
    everything = tuple(itertools.chain(*rule.order))
    contested = _contested(rule, sizes, shardings)
    keep(rule.order[0], avoided=contested)
    for names in split_images:
        take_over(names)
    keep(everything, avoided=contested)
    for name in itertools.chain(*split_images):
        take_over((name,))
    keep(everything, avoided=set())
    return Assignment(sizes, chosen)


def _contested(
    rule: ShardingRule, sizes: Mapping[str, int], shardings: Sequence[ArraySharding]
) -> set[str]:
    """Mesh axes that split two images along different factors: one image would have to be gathered."""
    wanted: dict[str, set[str]] = {}
    for position in rule.images:
        for factor, names in _mesh_axes_by_factor(rule, sizes, shardings, position):
            for name in names:
                wanted.setdefault(name, set()).add(factor)
    return {name for name, factors in wanted.items() if len(factors) > 1}


def _mesh_axes_by_factor(
    rule: ShardingRule,
    sizes: Mapping[str, int],
    shardings: Sequence[ArraySharding],
    position: int,
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """An array's factors and their mesh axes: a minor factor is split if the major one is split fully."""
    for factors, axes in zip(rule.arrays[position], shardings[position], strict=True):
        names = list(axes)
        for factor in factors:
            rest, split = math.gcd(*rule.sizes[factor]), []
            while names and rest % sizes[names[0]] == 0:
                rest //= sizes[names[0]]
                split.append(names.pop(0))
            yield factor, tuple(split)
            if rest > 1:
                break

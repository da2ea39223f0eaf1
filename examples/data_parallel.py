"""Data-parallel training on any number of devices, in one process or several, with JAX alone.

Every device holds all parameters and a shard of each batch. The shardings of the arrays say so, once;
`jax.jit` then divides the step and sums the gradients of the shards. The model, the loss
and the step are written as for one device.

With several processes, each runs the same program and draws the same random numbers, so every process
knows the whole batch and gives its own devices their shards.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that select the devices to train on."""
    group = parser.add_argument_group("several devices")
    group.add_argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="train on the first N devices of each process, each with a shard of the batch (1)",
    )
    group.add_argument(
        "--distributed",
        action="store_true",
        help="one of several processes, started by a launcher that jax.distributed supports (Slurm, "
        "Open MPI, Kubernetes, ...)",
    )
    group.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="one of several processes, which meet at this address of process 0",
    )
    group.add_argument("--processes", type=int, metavar="N", help="how many processes there are")
    group.add_argument("--process", type=int, metavar="I", help="the index of this process, from 0")


class DataParallel:
    """The devices to train on, and the shardings of arrays on them."""

    def __init__(self, devices: int) -> None:
        of_process: dict[int, list[jax.Device]] = {}
        for device in jax.devices():
            of_process.setdefault(device.process_index, []).append(device)
        chosen = [device for found in of_process.values() for device in found[:devices]]
        mesh = Mesh(np.array(chosen), ("batch",))
        self.count = len(chosen)
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.divided = NamedSharding(mesh, PartitionSpec("batch"))

    @classmethod
    def start(cls, arguments: argparse.Namespace) -> DataParallel:
        """Made from the command line, whose `batch` is divided. Must run before anything uses JAX."""
        meeting = (arguments.coordinator, arguments.processes, arguments.process)
        if arguments.distributed or any(value is not None for value in meeting):
            if not arguments.distributed and None in meeting:
                sys.exit("--coordinator, --processes and --process go together")
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(*meeting)
        present = jax.local_device_count()
        if not 1 <= arguments.devices <= present:
            sys.exit(f"--devices must be between 1 and {present}, which is what JAX sees here")
        parallel = cls(arguments.devices)
        if arguments.batch % parallel.count:
            sys.exit(f"--batch must divide among {parallel.count} devices, got {arguments.batch}")
        return parallel

    @property
    def leads(self) -> bool:
        """Whether this process is the one that prints and writes files."""
        return jax.process_index() == 0

    def describe(self) -> str:
        """The devices in words, if there is more than one."""
        if self.count == 1:
            return ""
        count = jax.process_count()
        return f"; {self.count} devices of {count} process{'es' if count > 1 else ''}"

    def jit(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled training step, (state, *batch) -> results; every device holds the whole results."""
        compiled = jax.jit(step, out_shardings=self.replicated)
        if self.count == 1 or jax.default_backend() != "cpu":
            return compiled
        # jaxlib 0.10 hangs, with plain lax too, when one virtual device gets about thirty steps ahead
        # of the others: it then occupies the last thread, which they need to reach the sum.
        return lambda *operands: jax.block_until_ready(compiled(*operands))

    def replicate(self, state: Any) -> Any:
        """Arrays that every device holds."""
        return jax.tree.map(lambda leaf: self._put(leaf, self.replicated), state)

    def divide(self, *batch: np.ndarray) -> tuple[jax.Array, ...]:
        """Arrays of which every device holds a shard of the first axis."""
        return tuple(self._put(array, self.divided) for array in batch)

    def agree(self, value: float) -> float:
        """The largest of the processes' values, so that every process makes the same decision."""
        if jax.process_count() == 1:
            return value
        return float(np.max(multihost_utils.process_allgather(np.float32(value))))

    def _put(self, array: Any, sharding: NamedSharding) -> jax.Array:
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

"""The results of scaling.py: a table, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jax_convgrad._src.timing.method import Method
from jax_convgrad.bench import summary, tables
from jax_convgrad.bench.forms import title
from jax_convgrad.bench.provenance import provenance
from jax_convgrad.bench.scaling import Result, Sizes


class Report:
    """The figures of a run: table, Markdown and JSON."""

    def __init__(
        self,
        programs: dict[str, list[tuple[int, int]]],
        results: Sequence[Result],
        forms: Sequence[str],
        sizes: Sizes,
    ) -> None:
        self.programs, self.forms, self.sizes = programs, forms, sizes
        self.results = {(r.devices, r.images, r.form): r for r in results}

    def efficiency(self, kind: str, devices: int, form: str) -> float | None:
        """t(1) / t(N) in weak scaling, t(1) / (N t(N)) in strong scaling."""
        images = dict(self.programs[kind])
        one, many = (self.results.get((n, images[n], form)) for n in (1, devices))
        if one is None or many is None or not one.median or not many.median:
            return None
        return one.median / many.median / (devices if kind == "strong" else 1)

    def ratio(self, devices: int, images: int) -> float | None:
        """How many times slower lax is than ours."""
        group = {form: self.results.get((devices, images, form)) for form in ("ours", "lax")}
        return summary.ratio({form: result for form, result in group.items() if result}, "lax")

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The table: one row for each number of devices, of each kind of scaling."""
        both = {"ours", "lax"} <= set(self.forms)
        head = ["scaling", "devices", "images", *map(title, self.forms)]
        head += [f"{title(form)} efficiency" for form in self.forms]
        head += ["vs lax", "gradients differ"] if both else []
        body = []
        for kind, wanted in self.programs.items():
            for devices, images in wanted:
                row = [f"{kind} scaling", str(devices), str(images)]
                found = [self.results.get((devices, images, form)) for form in self.forms]
                row += [tables.time_cell(r.median, r.quartiles) if r else "-" for r in found]
                row += [_percent(self.efficiency(kind, devices, form)) for form in self.forms]
                if both:
                    row.append(tables.times(self.ratio(devices, images)))
                    ours = self.results.get((devices, images, "ours"))
                    apart = ours.difference if ours else None
                    row.append("-" if apart is None else f"{apart:.0e}")
                body.append(row)
        return head, body

    def summary(self) -> dict[str, Any]:
        """Efficiencies, ours relative to lax's, and the programs where ours is slower."""
        slower = 1 / summary.LIMITS["lax"]
        pairs = [pair for wanted in self.programs.values() for pair in wanted]
        ratios = {pair: self.ratio(*pair) for pair in dict.fromkeys(pairs)}
        return {
            "efficiency": {
                kind: {
                    form: {str(n): self.efficiency(kind, n, form) for n, _ in wanted}
                    for form in self.forms
                }
                for kind, wanted in self.programs.items()
            },
            "slower_than_lax": [
                f"{devices} devices, {images} images: {1 / value:.2f}"
                for (devices, images), value in ratios.items()
                if value is not None and value < slower
            ],
            "failed": [
                f"{r.form} on {r.devices}, {r.images} images: {r.failure}"
                for r in self.results.values()
                if r.failure
            ],
        }

    def lines(self) -> Iterator[str]:
        """The summary in words."""
        found = self.summary()
        for kind, efficiency in found["efficiency"].items():
            if not {"ours", "lax"} <= efficiency.keys():
                continue
            ours, lax = efficiency["ours"], efficiency["lax"]
            compared = [
                f"{ours[n] / lax[n]:.2f} on {n}" for n in ours if n != "1" and ours[n] and lax[n]
            ]
            if compared:
                yield (
                    f"{kind} scaling, efficiency of {title('ours')} over that of lax: "
                    f"{', '.join(compared)}"
                )
        if {"ours", "lax"} <= set(self.forms):
            slow, limit = found["slower_than_lax"], summary.LIMITS["lax"] - 1
            text = f" ({'; '.join(slow)})" if slow else ""
            yield (
                f"{title('ours')} slower than lax by more than {limit:.0%}: {len(slow)} programs{text}"
            )
        for r in self.results.values():
            if r.failure:
                yield f"failed: {title(r.form)} on {r.devices}, {r.images} images: {r.failure}"
        counts = [devices for wanted in self.programs.values() for devices, _ in wanted]
        if jax.default_backend() == "cpu" and max(counts) > 1:
            yield (
                "these devices are virtual ones, which share the processors of one host: the run "
                "shows that the programs work, and its efficiencies mean nothing"
            )

    def describe(self) -> str:
        """The network, in one line."""
        s = self.sizes
        return (
            f"a training step in float32, {s.blocks} blocks of {s.width} channels and a 4x4 "
            f"conv_transpose, images of {s.patch}x{s.patch} to {2 * s.patch}x{2 * s.patch}"
        )

    def legend(self) -> str:
        """What the cells mean."""
        name, _ = tables.unit()
        text = (
            f"Cells: median time of a step in {name}, spread between the quartiles in % of it. "
            "Efficiency: t(1)/t(N) in weak, t(1)/(N t(N)) in strong scaling."
        )
        if {"ours", "lax"} <= set(self.forms):
            text += f" vs lax: the time of lax, over {title('ours')}'s."
        return text

    def table(self) -> str:
        """For a terminal."""
        return tables.aligned(*self.rows())

    def markdown(self) -> str:
        """As a Markdown document."""
        return tables.page(
            "Scaling", self.describe(), self.legend(), self.rows(), list(self.lines())
        )

    def to_json(self, method: Method, load_before: float | None) -> dict[str, Any]:
        """All measurements, with the details that are needed to judge them."""
        return {
            **provenance(load_before),
            "devices_present": [device.device_kind for device in jax.local_devices()],
            "xla_flags": os.environ.get("XLA_FLAGS"),
            "sizes": dataclasses.asdict(self.sizes),
            "method": dataclasses.asdict(method),
            "scaling": {
                kind: [list(pair) for pair in pairs] for kind, pairs in self.programs.items()
            },
            "results": [
                {
                    "devices": r.devices,
                    "images": r.images,
                    "form": r.form,
                    "median_s": r.median,
                    "quartiles_s": r.quartiles,
                    "samples_s": r.samples,
                    "steps_per_sample": r.steps,
                    "first_loss": r.loss,
                    "gradient_difference": r.difference,
                    "failure": r.failure,
                }
                for r in self.results.values()
            ],
            "summary": self.summary(),
        }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"

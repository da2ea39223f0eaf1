"""Compares checkouts on one noisy machine: their benchmarks run at the same time, sample by sample in turns.

    python benchmarks/in_turns.py BEFORE AFTER [COPY_OF_BEFORE] -- --set cpu --rounds 21

An argument is a folder with a `jax_convgrad` that can be imported. Each folder gets a process of its own,
which runs `python -m jax_convgrad bench --forms ours` with the options behind the `--`. Only one process
works at any moment: it prepares a pass, or takes one sample, and hands the turn to the next. So the samples
of a round lie some hundredths of a second apart, and what else the machine does falls on all of them alike.
glibc keeps the memory that is freed (benchmarks/cpu/memory_kept.txt), so that no pass has two modes, with and
without page faults.

One kind of chance stays, which a process keeps as long as it lives: where its arrays lie. So there are
several runs, each with new processes. A run counts with the median over its rounds of each folder's time
divided by the first folder's; the table has the median over the runs, and the smallest and the largest. A
second copy of the first folder says how large a difference of nothing looks. `--json` keeps the runs'
medians.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

# What each process runs, with the pipe that it gets the turn from, the one that it hands it on through, and
# how many processes there are. The turn is one byte: how many have finished. The benchmark pauses before
# each sample; that is where the turn goes round.
_CHILD = """
import dataclasses, math, os, sys, time
take_from, give_to, processes = map(int, sys.argv[1:4])
def take():
    return os.read(take_from, 1)[0]
def give(finished):
    os.write(give_to, bytes([finished]))
class Turns:
    perf_counter = staticmethod(time.perf_counter)
    @staticmethod
    def sleep(seconds):
        global finished
        give(finished)
        finished = take()
        time.sleep(seconds)
finished = take()
from jax_convgrad.__main__ import main
from jax_convgrad.bench import timing
timing.time = Turns
run = timing.run
def run_all_rounds(cases, forms, passes, layout, method, *rest):
    return run(cases, forms, passes, layout, dataclasses.replace(method, form_seconds=math.inf), *rest)
timing.run = run_all_rounds
sys.argv = ["jax_convgrad", "bench", "--forms", "ours", *sys.argv[4:]]
try:
    status = main() or 0
except SystemExit as end:
    status = end.code or 0
finished += 1
give(finished)
while finished < processes:
    finished = take()
    give(finished)
sys.exit(status)
"""

Samples = dict[str, list[float]]  # by pass, in seconds, in the order of the rounds
Medians = dict[str, float]


def run(folders: Sequence[str], options: Sequence[str]) -> list[Samples]:
    """Each folder's samples."""
    pipes = [os.pipe() for _ in folders]
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [pathlib.Path(scratch, f"{i}.json") for i in range(len(folders))]
        children = []
        for i, folder in enumerate(folders):
            take_from, give_to = pipes[i][0], pipes[(i + 1) % len(folders)][1]
            numbers = [str(n) for n in (take_from, give_to, len(folders))]
            with pathlib.Path(scratch, f"{i}.log").open("w") as log:
                children.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-c",
                            _CHILD,
                            *numbers,
                            *options,
                            "--json",
                            str(outputs[i]),
                        ],
                        pass_fds=(take_from, give_to),
                        env={
                            **os.environ,
                            "PYTHONPATH": str(pathlib.Path(folder).resolve()),
                            "MALLOC_ARENA_MAX": "1",  # the others give back what is freed
                            "MALLOC_MMAP_MAX_": "0",
                            "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
                        },
                        cwd=scratch,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        os.write(pipes[0][1], bytes([0]))
        for i, child in enumerate(children):
            if child.wait() != 0:
                for other in children:
                    other.kill()
                said = pathlib.Path(scratch, f"{i}.log").read_text()
                raise SystemExit(f"{folders[i]}: {said[-2000:]}")
        return [samples_of(json.loads(output.read_text())) for output in outputs]


def samples_of(content: dict[str, Any]) -> Samples:
    samples: Samples = {}
    for row in content["results"]:
        case = row["case"]
        name = f"{case['kind'] if 'kind' in case else 'resize'} {case['name']} {case['dt']} {row['pass']}"
        while name in samples:
            name += "'"
        samples[name] = row["samples_s"]
    return samples


def medians_of(samples: Sequence[Samples]) -> list[Medians]:
    """Of each folder but the first, by pass: the median of each round's time by the first folder's."""
    first = samples[0]
    return [
        {
            name: statistics.median(
                mine / its for mine, its in zip(other[name], first[name], strict=True)
            )
            for name in first
        }
        for other in samples[1:]
    ]


def report(runs: dict[str, list[Medians]]) -> str:
    """A table of all passes, the slowest first, and a sentence for each folder behind the first."""
    middle = {
        folder: {name: statistics.median(run[name] for run in medians) for name in medians[0]}
        for folder, medians in runs.items()
    }
    lines = [
        "| pass | " + " | ".join(f"{folder} | its runs" for folder in runs) + " |",
        "|---|" + "---:|---|" * len(runs),
    ]
    first = next(iter(middle.values()))
    for name in sorted(first, key=lambda name: -first[name]):
        cells = []
        for folder, medians in runs.items():
            values = [run[name] for run in medians]
            cells.append(f"{middle[folder][name]:.3f} | {min(values):.3f} to {max(values):.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    for folder, of_folder in middle.items():
        mean = math.exp(statistics.fmean(math.log(m) for m in of_folder.values()))
        always = sum(min(run[name] for run in runs[folder]) > 1.03 for name in of_folder)
        lines.append(
            f"{folder}: {len(of_folder)} passes, {mean:.3f} in the geometric mean; "
            f"{sum(m > 1.03 for m in of_folder.values())} above 1.03, {always} of them in every run."
        )
    return "\n".join(lines)


def main() -> None:
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description="see the program's first lines")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--names", nargs="+", help="of the folders behind the first, for the table")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json")
    parsed = parser.parse_args(arguments)
    names = parsed.names or parsed.folders[1:]
    runs: dict[str, list[Medians]] = {name: [] for name in names}
    for turn in range(parsed.runs):
        # Each folder comes behind each other one in turn.
        first = turn % len(parsed.folders)
        samples = run(parsed.folders[first:] + parsed.folders[:first], options)
        samples = samples[len(samples) - first :] + samples[: len(samples) - first]
        for name, medians in zip(names, medians_of(samples), strict=True):
            runs[name].append(medians)
        if parsed.json:
            pathlib.Path(parsed.json).write_text(json.dumps(runs))
    print(report(runs))


if __name__ == "__main__":
    main()

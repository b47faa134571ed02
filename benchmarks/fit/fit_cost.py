"""Measure ``analyze fit``: its cost over one estimate, its bracket, and whether the safe batch runs.

    python benchmarks/fit/fit_cost.py "TARGET [OPTION …]" …      # options of fit, one text per case
    python benchmarks/fit/fit_cost.py --command OLD/analyze CASE …   # another installation
    python benchmarks/fit/fit_cost.py --list                     # the usual cases

Each case runs two commands with all their children: ``fit``, and one ``estimate`` at its largest size.
Costs are CPU seconds, so a busy
machine changes them little. Plans of XLA's compiler are not taken from the cache.

Figures: benchmarks/results/fit-cost.md.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from analyzer.model.machine import VARIABLE, cache_folder

MODELS = Path(__file__).with_name("fit_models.py")
ONE_THREAD = "--no-jit --inter-op-threads 1"
CASES = [
    f"{MODELS}:perceptron --limit 48MiB {ONE_THREAD}",
    f"{MODELS}:convolutional --limit 80MiB {ONE_THREAD}",
    f"{MODELS}:decoder --limit 120MiB {ONE_THREAD}",
    f"{MODELS}:recurrent --limit 24MiB {ONE_THREAD}",
    f"{MODELS}:residual --limit 128MiB {ONE_THREAD}",
    f"{MODELS}:unet --gpu t4 --limit 200MiB --no-jit",
    f"{MODELS}:convolutional --gpu t4 --limit 300MiB --no-jit",
    f"{MODELS}:perceptron --gpu t4 --limit 300MiB",
    f"{MODELS}:decoder --gpu a100-40gb --limit 400MiB",
    f"{MODELS}:gelu_chain --gpu t4 --limit 200MiB --no-jit",
    f"{MODELS}:deep --gpu t4 --limit 300MiB",
]
NOT_FIT = 3
"""Exit code if the step does not fit, which is an answer."""

COLUMNS = (
    "case",
    "CPU s",
    "estimates",
    "by",
    "sizes",
    "failed",
    "fits",
    "fails",
    "safe",
)


def run_command(command: list[str], cache: Path) -> tuple[float, float]:
    """Run a command with a copy of the cache; return wall and CPU seconds, children included.

    Raises:
        SystemExit: it failed.
    """
    user_cache = cache_folder()
    if user_cache is not None and user_cache.is_dir():
        ignored = shutil.ignore_patterns("*.plan.gz")
        shutil.copytree(user_cache, cache, ignore=ignored, dirs_exist_ok=True)
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", VARIABLE: str(cache)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall_s = time.monotonic() - begin_s
    if ended.returncode not in (0, NOT_FIT):
        raise SystemExit(f"{shlex.join(command)} failed: {ended.stderr.strip()[-400:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(analyze: list[str], case: str) -> tuple[float, list[Any]]:
    """Return the cost of a case in estimates, and its row."""
    target, *options = shlex.split(case)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "answer.json"
        fit = [*analyze, "fit", target, *options, "-q", "--json", str(file)]
        _, fit_s = run_command(fit, folder / "cache-of-fit")
        answer = json.loads(file.read_text())
        size = str(max(answer["largest"], 1))
        estimate = [*analyze, "estimate", target, *options, "--batch-size", size, "-q"]
        _, one_s = run_command(
            [*estimate, "--out", str(folder / "run")], folder / "cache-of-estimate"
        )
    cost = fit_s / one_s
    points = answer["points"]
    return cost, [
        case.replace(str(MODELS.parent) + "/", ""),
        f"{fit_s:.1f}",
        f"{cost:.1f}",
        answer["by"],
        len(points),
        sum(not point["fits"] for point in points),
        answer["largest"],
        answer.get("failing"),
        answer["safe"],
    ]


def main(arguments: list[str]) -> None:
    """Print a row per case and the median cost."""
    analyze = [sys.executable, str(Path(__file__).resolve().parents[2] / "cli.py")]
    if arguments[:1] == ["--command"]:
        analyze, arguments = [arguments[1]], arguments[2:]
    if arguments == ["--list"]:
        print("\n".join(CASES))
        return
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    costs = []
    for case in arguments or CASES:
        cost, row = measure(analyze, case)
        costs.append(cost)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    print(f"\nMedian cost: {median(costs):.1f} estimates.")


if __name__ == "__main__":
    main(sys.argv[1:])

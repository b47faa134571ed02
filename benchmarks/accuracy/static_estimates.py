"""Static estimates against runs of the same step, on a CPU and on a simulated card.

    python benchmarks/accuracy/static_estimates.py                       # the default cases
    python benchmarks/accuracy/static_estimates.py --runs 3 lstm_16_adam # one case, three runs

Makes the table of static estimates in ``docs/accuracy.md``. A static estimate plays the graph without a
run; the product uses it on a CPU and where the simulated card cannot run. The cases are functions of
``accuracy_models.py``. A row compares the last step's requested and allocated peak with the median of
the runs, and says how many runs lie inside the stated range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
COMMAND = HERE.parents[2] / "cli.py"
MODELS = HERE.with_name("accuracy_models.py")
CASES = (
    "resnet_8_adam",
    "unet_4_adam",
    "encoder_8_ema",
    "vit_8_adamw",
    "gru_16_adam",
    "lstm_16_adam",
    "recommender_256_adam",
    "gan_16_adam",
    "half_16_adam",
    "inception_8_adam",
)
WAYS: dict[str, tuple[str, ...]] = {"CPU": (), "T4": ("--gpu", "t4")}
STATIC = {"TF_MEMORY_ANALYZER_STATIC": "1"}
"""Keeps ``analyze estimate --gpu`` from running the step on the simulated card."""

RANGES = {
    "requested_bytes": ("low_bytes", "high_bytes"),
    "allocated_bytes": ("allocated_low_bytes", "allocated_high_bytes"),
}
"""The range of each quantity in a document's ``uncertainty``."""


def answer(command: str, case: str, way: str, folder: Path) -> dict[str, Any]:
    """Run one command on a case and return its JSON document.

    Raises:
        SystemExit: the command failed.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    out = place / "answer.json"
    arguments = [command, f"{MODELS}:{case}", *WAYS[way], "--no-jit", "--json", out]
    ended = subprocess.run(
        [sys.executable, COMMAND, *map(str, arguments), "--quiet"],
        cwd=place,
        env={**os.environ, **STATIC},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{command} {case} failed: {ended.stderr.strip()[-400:]}")

    document: dict[str, Any] = json.loads(out.read_text())
    return document


def compare(
    case: str, way: str, runs: int, folder: Path
) -> dict[str, tuple[float, int]]:
    """Return for each quantity the error of the estimate and the runs inside its range.

    Args:
        case: A function of ``accuracy_models.py``.
        way: A key of ``WAYS``.
        runs: How many processes run the step.
        folder: Where the run folders go.
    """
    document = answer("estimate", case, way, folder)
    estimate, uncertainty = document["steps"][-1], document["uncertainty"]
    peaks = [answer("trace", case, way, folder)["steps"][-1] for _ in range(runs)]

    compared = {}
    for quantity, (low, high) in RANGES.items():
        measured = [peak[quantity] for peak in peaks]
        typical = statistics.median(measured)
        error = abs(estimate[quantity] - typical) / typical

        inside = sum(uncertainty[low] <= peak <= uncertainty[high] for peak in measured)
        compared[quantity] = (error, inside)
    return compared


def summary(errors: list[float]) -> str:
    """Return the median and the 90th percentile as text."""
    ninth = statistics.quantiles(errors, n=10, method="inclusive")[-1]
    return f"median {statistics.median(errors):.2%}, p90 {ninth:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--runs", type=int, default=1, help="processes that run a case")
    options = parser.parse_args()

    print("| case | on | requested | allocated | inside |\n|---|---|--:|--:|---|")
    for way in options.ways:
        errors: dict[str, list[float]] = {quantity: [] for quantity in RANGES}
        for case in options.cases:
            with tempfile.TemporaryDirectory() as made:
                compared = compare(case, way, options.runs, Path(made))
            for quantity, (error, _) in compared.items():
                errors[quantity].append(error)
            texts = [f"{error:.2%}" for error, _ in compared.values()]
            inside = " and ".join(
                f"{count} of {options.runs}" for _, count in compared.values()
            )
            print(f"| {case} | {way} | {' | '.join(texts)} | {inside} |", flush=True)

        if len(options.cases) > 1:
            for quantity, found in errors.items():
                print(f"{way}, {quantity}: {summary(found)}", flush=True)


if __name__ == "__main__":
    main()

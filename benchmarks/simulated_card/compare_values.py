"""Sizes on a simulated card beside those of the same step on the CPU, where all values are true.

    python benchmarks/simulated_card/compare_values.py steps.py:mask steps.py:beams

The CPU has other kernels, another order and other workspaces, so its peak is no truth for a card. The
size of each op's results is: it follows from the values alone. For each step the bytes at the card's
peak are put into three groups. *Equal* are those of ops that make a result of the same size on the CPU;
*different* are those of ops that make others there; *own* are scratch memory of kernels, and results of
ops that the CPU fuses. The figures on values in ``benchmarks/results/simulated-card.md`` come from it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

COMMAND = Path(__file__).resolve().parents[2] / "cli.py"
CARD = ("--gpu", "t4", "--no-jit")


def trace(target: str, *options: str) -> pd.DataFrame:
    """Return the allocations of the last traced step and of the time before the steps."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "allocations.csv"
        arguments = [target, "--no-save", "--quiet", "--csv", str(table), *options]
        command = [sys.executable, str(COMMAND), "trace", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

        if not table.exists():
            sys.exit(f"{target}: {done.stderr.strip().splitlines()[-1]}")

        rows = pd.read_csv(table, low_memory=False)

    last = rows["step"].max()
    return rows[rows["step"].isna() | rows["step"].eq(last)]


def compare(target: str) -> dict[str, float]:
    """Return the shares of the card's peak in each group, in percent."""
    card = trace(target, *CARD)
    host = trace(target)

    peak = card[card["alive_at_peak"].astype(bool)]
    total = peak["requested_bytes"].sum()
    results = host[host["region"].ne("temp") & host["op"].notna()]
    sizes = results.groupby("op")["requested_bytes"].agg(set)

    # Variables and inputs have the sizes that the program gives them.
    of_step = peak["step"].notna() & peak["op"].notna()
    is_scratch = peak["region"].eq("temp") | peak["category"].eq("workspace")
    is_result = of_step & ~is_scratch & peak["op"].isin(sizes.index)
    is_equal = pd.Series(
        [
            known and size in sizes[op]
            for known, size, op in zip(
                is_result,
                peak["requested_bytes"],
                peak["op"],
                strict=True,
            )
        ],
        index=peak.index,
    )

    groups = {
        "equal": ~of_step | is_equal,
        "different": is_result & ~is_equal,
        "own": of_step & ~is_result,
    }
    return {
        name: 100 * peak.loc[rows, "requested_bytes"].sum() / total
        for name, rows in groups.items()
    }


def main() -> None:
    """Print a row for each target."""
    for target in sys.argv[1:]:
        shares = compare(target)
        texts = (f"{name} {share:5.1f} %" for name, share in shares.items())
        print(f"{target:40} {'  '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()

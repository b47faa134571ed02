"""How fast kernels and threads are: the table ``measured_rates.csv``.

Each row has a value with its unit, what it is of, what it was read off, the machine that it was
measured on and how many intra-op threads ran there. The values are taken for any number of those:
nothing scales them. Only ratios count, and those within a factor of a few: a draw stretches them by
chance.
``benchmarks/accuracy/kernel_rates.py`` measures the rates of kernels anew on another machine; the
script that the first ones were read off with was not kept.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


@cache
def _table() -> dict[str, float]:
    text = (files("analyzer.simulate.predict.executor") / "measured_rates.csv").read_text(
        encoding="utf-8"
    )
    return {row["name"]: float(row["value"]) for row in csv.DictReader(text.splitlines())}


def measured(name: str) -> float:
    """Return a value of the table in its unit: seconds, bytes or operations per second, or a share.

    Raises:
        KeyError: the table has no such row.
    """
    return _table()[name]

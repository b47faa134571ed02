"""cuDNN's workspaces in a CSV against its algorithms in the package.

    python benchmarks/workspaces.py workspaces.csv

A row is a convolution that ran: ``card``, ``tf``, ``type`` (the op), ``N``, ``C``, ``H``, ``W``, ``K``,
``R``, ``S``, ``P``, ``Q``, ``algorithm`` (from its kernels' names; empty if unknown) and
``workspace_bytes``. Without H and W the image is as large as the result. Printed for each card: the
share of rows whose workspace is the closed form of the known algorithm, that lie inside the expected
range, and that have the workspace of the expected algorithm; and the median width of the range as a
multiple of the input and output.

Figures: the table of workspaces in docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from analyzer.cards.catalogue import find_gpu
from analyzer.model.units import Range
from analyzer.simulate.kernels.cudnn_algorithms import (
    LIKELY,
    Convolution,
    Offer,
    find_offers,
)

CARDS: Final = {
    "GTX1060-6G": "gtx-1060-6gb",
    "GTX1080": "gtx-1080",
    "P100": "p100-16gb-pcie",
    "V100": "v100-16gb-pcie",
    "RTX2060S": "rtx-2060-super",
    "RTX2060": "rtx-2060",
    "T4": "t4",
}
PASSES: Final = {
    "Conv2D": "forward",
    "_FusedConv2D": "forward",
    "Conv2DBackpropInput": "input_gradient",
    "Conv2DBackpropFilter": "filter_gradient",
}
ALGORITHMS: Final = {
    "wino4": ("winograd-4x4",),
    "wino9": ("winograd-9x9",),
    "winofused": ("winograd-fused",),
    "scudnn_precomp": ("precomputed",),
    "precomp_kernel": ("plain", "precomputed"),
    "wgrad_alg0": ("plain",),
    "dgrad_engine": ("plain",),
    "dgrad_alg1": ("plain",),
    "scudnn_dgradwgrad": ("strided", "split-k"),
    **{f"fft{side}": ("fft", "fft-tiling") for side in (16, 32, 64, 128, 256)},
}
"""Algorithm in the CSV -> names in the package."""

LIMIT_BYTES: Final = 4 << 30
"""TensorFlow's limit of a workspace in the versions of the traces."""

SMALL_SHARE: Final = 0.01
SMALL_BYTES: Final = 1 << 16
"""An expected range starts at 0 if its lower end is below one of them."""


def read_convolution(row: Mapping[str, str]) -> Convolution | None:
    """Return the convolution of a row; None if its shapes are not known or cuDNN does not run it."""
    names = ("N", "C", "K", "R", "S", "P", "Q")
    if row["tf"].startswith("2.3"):  # cuDNN 7 had other workspaces
        return None
    if row["type"] not in PASSES or not all(
        row[name] for name in ("N", "C", "K", "R", "S")
    ):
        return None
    result = [row["P"] or row["H"], row["Q"] or row["W"]]
    image = [row["H"] or row["P"], row["W"] or row["Q"]]
    if not all((*result, *image)):
        return None
    batch, depth, filters, high, wide = (int(row[name]) for name in names[:5])
    (out_high, out_wide), (in_high, in_wide) = map(int, result), map(int, image)
    is_dense = in_high - high + 1 <= out_high <= in_high + high - 1
    return Convolution(
        direction=PASSES[row["type"]],
        image=(batch, depth, in_high, in_wide),
        kernel=(filters, high, wide),
        result=(out_high, out_wide),
        stride=1 if is_dense else max(round(in_high / out_high), 1),
    )


def expect_range(candidates: Sequence[Offer], small_bytes: int) -> Range:
    """Return the range of the workspaces of the candidates that may be the fastest.

    Below ``small_bytes`` it starts at 0: such algorithms have kernels without a workspace.
    """
    shortest = min((one.microseconds for one in candidates), default=0.0)
    likely = [
        one.bytes for one in candidates if one.microseconds <= LIKELY * shortest
    ] or [0]
    return Range(0 if min(likely) < small_bytes else min(likely), max(likely))


def score(path: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of each card, and of all."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            convolution = read_convolution(row)
            if convolution is None or row["card"] not in CARDS:
                continue
            size_bytes = int(row["workspace_bytes"])
            candidates = find_offers(
                convolution, find_gpu(CARDS[row["card"]]), LIMIT_BYTES
            )
            batch, depth, *axes = convolution.image
            tensors = depth * math.prod(axes) + convolution.kernel[0] * math.prod(
                convolution.result
            )
            tensors *= 4 * batch
            expected = expect_range(
                candidates, max(int(SMALL_SHARE * tensors), SMALL_BYTES)
            )
            names = ALGORITHMS.get(row["algorithm"])
            fastest = min(candidates, key=lambda one: one.microseconds, default=None)
            for card in (row["card"], "all"):
                figures = found[card]
                if names is not None:
                    sizes = {one.bytes for one in candidates if one.name in names}
                    figures["exact"].append(size_bytes in sizes)
                figures["inside"].append(size_bytes in expected)
                expected_bytes = None if fastest is None else fastest.bytes
                figures["expected"].append(size_bytes == expected_bytes)
                figures["width"].append(expected.width / tensors)
    for card, figures in sorted(found.items()):
        yield (
            card,
            {
                "rows": len(figures["inside"]),
                "known": len(figures["exact"]),
                "exact": statistics.mean(figures["exact"] or [0]),
                "inside": statistics.mean(figures["inside"]),
                "expected": statistics.mean(figures["expected"]),
                "width": statistics.median(figures["width"]),
            },
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    print("card          rows  known   exact  inside  expected  width")
    for card, row in score(parser.parse_args().csv):
        print(
            f"{card:12} {row['rows']:5.0f} {row['known']:6.0f} {row['exact']:7.1%} {row['inside']:7.1%}"
            f" {row['expected']:9.1%} {row['width']:6.2f}"
        )


if __name__ == "__main__":
    main()

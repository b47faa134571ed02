"""Estimates against measurements on real cards.

    python benchmarks/card/real_cards.py --cache FOLDER [ROW ...]
    python benchmarks/card/real_cards.py --cache FOLDER --no-run --write benchmarks/results/real-cards.md

The measurements are other people's (peaks in published profiler traces, and largest batches in public
reports; the models are in ``real_models.py``) and those of the card kit in ``records/``. Each is
estimated with today's code; the cache keeps the results, so that an interrupted run continues.

Figures: "Real cards" in docs/accuracy.md, benchmarks/results/real-cards.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from card_record import read_record

HERE: Final = Path(__file__).parent
BEGIN: Final = "<!-- written by benchmarks/card/real_cards.py -->"
END: Final = "<!-- end -->"
LONGEST_S: Final = 1800
OLD: Final = {"TF_CUDNN_WORKSPACE_LIMIT_IN_MB": "4096", "TF_USE_LEGACY_KERAS": "1"}
"""Keras 2 (``pip install tf_keras``), and the limit of a cuDNN workspace in the versions of the traces;
TensorFlow 2.21 has 8 GiB."""

RETINA: Final = "github:mholmeslinder/semi-supervised-cv@9a8988e (TensorFlow 2.3.1)"
XCEPTION: Final = "github:OlegPonomaryov/xception-saved-model-bug-demo (TensorFlow 2.4)"
LENET: Final = "github:ecbme4040/e4040-2023fall-assign2-hd2551@e82ab09"
PONG: Final = "github:Loptt/pong-autoencoder@44d681e to c5123bb (TensorFlow 2.4)"
CIFAR: Final = "github:FatmaBouzghaia/PFE_TensorFlow_Profiler@9dcecd6 (TensorFlow 2.4)"
BERT: Final = "google-research/bert README, Titan X 12 GB (TensorFlow 1.11)"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A peak on a real card, in bytes; None if not published.

    Attributes:
        name: Name of the row.
        target: Function of ``real_models.py``, or file and function.
        batch: Its batch size.
        card: The card.
        source: Where the trace is published.
        requested, allocated: Peak of a steady step.
        first_requested: Requested peak of the first step.
        own: Most requested bytes alive at once of those that a steady step allocates.
    """

    name: str
    target: str
    batch: int
    card: str
    source: str
    requested: int | None = None
    allocated: int | None = None
    first_requested: int | None = None
    own: int | None = None


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest batch that ran on a real card; attributes as in ``Measured``."""

    name: str
    target: str
    card: str
    source: str
    batch: int


PEAKS: Final = (
    Measured(
        name="alexnet-p100", target="alexnet", batch=128, card="p100-16gb-pcie", source=RETINA,
        requested=1_427_024_664, allocated=1_560_920_576, own=1_373_587_472,
    ),
    Measured(
        name="alexnet-v100", target="alexnet", batch=128, card="v100-16gb-sxm", source=RETINA,
        requested=1_247_662_616, allocated=1_351_464_960, own=1_194_938_896,
    ),
    Measured(
        name="alexnet-t4", target="alexnet", batch=128, card="t4", source=RETINA,
        requested=1_233_375_768, allocated=1_351_465_472, first_requested=2_735_320_600,
        own=1_180_652_048,
    ),
    Measured(
        name="resnet50v2-v100", target="resnet50v2", batch=128, card="v100-16gb-sxm", source=RETINA,
        own=11_838_907_792,
    ),
    Measured(
        name="xception-2060s", target="xception_frozen", batch=32, card="rtx-2060-super",
        source=XCEPTION, requested=970_466_004, first_requested=int(3.63 * 2**30),
    ),
    *(
        Measured(name=name, target=target, batch=batch, card=card, source=source, own=own)
        for name, target, batch, card, source, own in (
            ("alexnet-64-v100", "alexnet", 64, "v100-16gb-sxm", RETINA, 599_183_888),
            ("alexnet-32-t4", "alexnet", 32, "t4", RETINA, 310_675_472),
            ("alexnet-16-v100", "alexnet", 16, "v100-16gb-sxm", RETINA, 169_109_520),
            ("lenet-t4", "lenet", 256, "t4", LENET, 117_735_440),
            ("lenet-norm-t4", "lenet_norm", 256, "t4", LENET, 139_888_656),
            ("vae-53-1060", "autoencoder_53", 32, "gtx-1060-6gb", PONG, 58_606_868),
            ("vae-40-1060", "autoencoder_40", 32, "gtx-1060-6gb", PONG, 114_167_960),
            ("vae-40-flat-1060", "autoencoder_40_flat", 32, "gtx-1060-6gb", PONG, 46_252_184),
            ("vae-40-narrow-1060", "autoencoder_40_narrow", 32, "gtx-1060-6gb", PONG, 57_295_960),
        )
    ),
    *(
        Measured(
            name=f"{target.replace('_', '-')}-{batch}-5000", target=target, batch=batch,
            card="quadro-rtx-5000", source=CIFAR, own=own,
        )
        for target, batch, own in (
            ("cifar", 8, 4_385_680), ("cifar", 16, 8_764_304), ("cifar", 32, 15_917_072),
            ("cifar", 64, 31_686_672), ("cifar", 128, 63_225_872), ("cifar", 256, 126_304_272),
            ("cifar", 512, 252_461_072), ("cifar_half", 8, 1_687_800), ("cifar_half", 16, 2_888_952),
            ("cifar_half", 32, 5_291_256), ("cifar_half", 64, 10_095_864),
            ("cifar_half", 128, 19_705_080), ("cifar_half", 256, 38_923_512),
            ("cifar_half", 512, 77_360_376),
        )
    ),
)  # fmt: skip

LARGEST: Final = (
    *(
        Largest(
            name=f"bert-{size}-{tokens}", target=f"bert_{size}_{tokens}", card="titan-xp",
            source=BERT, batch=batch,
        )
        for size, batches in (("base", (64, 32, 16, 14, 12, 6)), ("large", (12, 6, 2, 1, 0, 0)))
        for tokens, batch in zip((64, 128, 256, 320, 384, 512), batches, strict=True)
    ),
    Largest(
        name="resnet101-1080", target="resnet101", card="gtx-1080",
        source="a report with TensorFlow 1.4: 61 runs, 62 does not", batch=61,
    ),
)  # fmt: skip


def list_own(record: Path) -> Iterator[Measured]:
    """Yield the peaks of the card kit that ran; gpt2 needs keras-hub."""
    for row in read_record(record).peaks:
        if not row.failed and "gpt2" not in row.name:
            yield Measured(
                name=f"h200 {row.name.partition(':')[2]}", target=row.name, batch=row.batch,
                card="h200-141gb-sxm", source="the card kit", requested=row.requested_bytes,
                allocated=row.allocated_bytes, first_requested=row.first_requested_bytes,
                own=row.own_bytes,
            )  # fmt: skip


def run(
    arguments: list[str], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON of a command of ``analyze``, or its error.

    Args:
        environment: Variables beside those of this process.
    """
    command = Path(sys.executable).with_name("analyze")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        try:
            done = subprocess.run(
                [command, *arguments, "--json", out], capture_output=True, text=True,
                timeout=LONGEST_S, check=False, env={**os.environ, **(environment or {})},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"did not end in {LONGEST_S} s"}
        if not out.exists():
            return {"failed": done.stderr.strip().splitlines()[-1:]}
        document: dict[str, Any] = json.loads(out.read_bytes())
        return document


def estimate(row: Measured) -> dict[str, Any]:
    """Return the figures of an estimate of a peak."""
    is_own = ":" in row.target
    target, _, compiled = row.target.partition(", ")
    if not is_own:
        target = f"real_models.py:{target}"
    if not target.startswith("keras:"):
        target = str(HERE / target)
    options = ["--gpu", row.card, "--jit" if compiled else "--no-jit", "--no-save"]
    if row.batch:
        options += ["--batch-size", str(row.batch)]
    if is_own:  # several processes shared the card, so that pools grew on demand
        options += ["--growth"]
    found = run(["estimate", target, *options], {} if is_own else OLD)
    if "failed" in found:
        return found
    stated, need = found["uncertainty"], found["verdict"]["need"]
    resident = found["resident"]["requested_bytes"]
    return {
        "own": found["peak"]["requested_bytes"] - resident,
        "own_range": [stated["low_bytes"] - resident, stated["high_bytes"] - resident],
        "requested": found["peak"]["requested_bytes"],
        "allocated": found["peak"]["allocated_bytes"],
        "requested_range": [stated["low_bytes"], stated["high_bytes"]],
        "allocated_range": [
            stated["allocated_low_bytes"],
            stated["allocated_high_bytes"],
        ],
        "first": need["first_step"]["bytes"],
        "first_range": list(need["first_step"]["range"].values()),
    }


def fit(row: Largest) -> dict[str, Any]:
    """Return the sizes of a search of the largest batch."""
    target = f"{HERE / 'real_models.py'}:{row.target}"
    found = run(["fit", target, "--gpu", row.card, "--no-jit"])
    if "failed" in found:
        return found
    return {key: found[key] for key in ("largest", "safe", "failing")}


QUANTITIES: Final = {
    "requested": "steady step, requested",
    "allocated": "steady step, allocated",
    "first": "first step, requested",
    "own": "allocated in the steady step, requested",
}


def peak_rows(
    measured: Iterable[Measured], results: dict[str, Any]
) -> Iterator[tuple[float, bool, float, str]]:
    """Yield for each peak its error, whether it lies in the range, the range's width, and a row."""
    for row in measured:
        found = results.get(row.name, {})
        for kind, real in (
            ("requested", row.requested),
            ("allocated", row.allocated),
            ("first", row.first_requested),
            ("own", row.own),
        ):
            if real is None or kind not in found:
                continue
            value, (low, high) = found[kind], found[f"{kind}_range"]
            error, width = value / real - 1, (high - low) / value
            inside = low <= real <= high
            what = QUANTITIES[kind]
            yield (
                error,
                inside,
                width,
                f"| {row.name} | {what} | {real:,} | {value:,} | {low:,} to {high:,} | {error:+.1%} | "
                f"{'yes' if inside else '**no**'} |",
            )


def fit_rows(results: dict[str, Any]) -> Iterator[str]:
    """Yield a row for each largest batch."""
    for row in LARGEST:
        found = results.get(row.name)
        if found is None or "failed" in found:
            continue
        inside = found["safe"] <= row.batch < (found["failing"] or math.inf)
        yield (
            f"| {row.name} | {row.batch} | {found['largest']} | {found['safe']} to {found['failing']} | "
            f"{'yes' if inside else '**no**'} |"
        )


def peak_table(measured: Iterable[Measured], results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of peaks, after a summary."""
    peaks = list(peak_rows(measured, results))
    for kind in QUANTITIES.values():
        some = [one for one in peaks if f"| {kind} |" in one[3]]
        if some:
            errors = [abs(error) for error, *_ in some]
            inside = sum(inside for _, inside, *_ in some)
            widths = sorted(width for _, _, width, _ in some)
            yield (
                f"{kind.capitalize()}: {len(some)} peaks, median error "
                f"{statistics.median(errors):.1%}, {inside} inside the range, width "
                f"{statistics.median(widths):.0%} in the median and {widths[-1]:.0%} at most."
            )
            yield ""
    yield "| row | quantity | measured | estimate | range | error | inside |"
    yield "|---|---|--:|--:|--:|--:|---|"
    yield from (line for *_, line in peaks)
    yield ""


def write(path: Path, record: Path, results: dict[str, Any]) -> None:
    """Replace the tables between the marks of a page."""
    lines = [
        *(
            BEGIN,
            "",
            "### An H200, by the card kit",
            "",
            *peak_table(list_own(record), results),
        ),
        *("### Public traces", "", *peak_table(PEAKS, results)),
        "| row | largest batch that ran | largest by estimate | safe to failing | inside |",
        "|---|--:|--:|--:|---|",
        *fit_rows(results),
        "",
    ]
    text = path.read_text()
    before, rest = text.split(BEGIN)
    path.write_text(before + "\n".join(lines) + END + rest.split(END)[1])


def main(arguments: Iterable[str] | None = None) -> None:
    """Estimate the rows that the cache lacks, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "rows", nargs="*", help="start of the names of rows; default all"
    )
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument(
        "--record", type=Path, default=HERE / "records" / "h200.json.gz"
    )
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args(arguments)
    asked.cache.mkdir(parents=True, exist_ok=True)
    results = {}
    for row in (*list_own(asked.record), *PEAKS, *LARGEST):
        file = asked.cache / f"{row.name}.json"
        is_wanted = not asked.rows or row.name.startswith(tuple(asked.rows))
        if not file.exists() and is_wanted and not asked.no_run:
            found = estimate(row) if isinstance(row, Measured) else fit(row)
            file.write_text(json.dumps(found))
            print(row.name, found, flush=True)
        if file.exists():
            results[row.name] = json.loads(file.read_text())
    if asked.write:
        write(asked.write, asked.record, results)


if __name__ == "__main__":
    main()

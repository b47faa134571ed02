"""What the explanation of traces of other programs covers, for any folder of traces.

    python benchmarks/traces/coverage.py FOLDER [--csv FILE]
    python benchmarks/traces/coverage.py --compare RUN_FOLDER ...

The first form prints for each ``.xplane.pb`` in the folder the steps, the card, the share of named
tensors with a layer, and the share of the bytes born in the trace by category; and counts the files
without steps, without a card, or with sums that differ from TensorFlow's counter. ``--csv`` writes one
row for each of up to three tensors of every category and file, to be checked by hand.

The second form takes run folders of `analyze trace ... --gpu`, removes the graph from a copy, and prints
the share of the bytes that keep their category. ``--bare`` removes the capture's whole note.

Figures: none; tests/integration/test_simulated_card.py calls `compare`.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from analyzer.model.errors import AnalyzerError
from analyzer.model.recording.records import Recording
from analyzer.model.recording.records import IDLE_ROLE
from analyzer.tracing.measure.measured_recording import open_measured

SAMPLES = 3
COLUMNS = ("op", "op_type", "requested_bytes", "region", "dtype", "shape", "layer", "category", "role")


def own_rows(recording: Recording) -> pd.DataFrame:
    """Return the allocations of the recording's allocator that have an event of birth.

    The buffer of a compiled module is replaced by its values.
    """
    table = recording.allocations
    own = (table["allocator"] == recording.allocator) & (table["born"] >= 0)
    is_divided = table.index.isin(table["part_of"].dropna().unique())
    return table[own & ~is_divided & (table["role"] != IDLE_ROLE)]


def cover(path: Path, samples: list[list[object]]) -> tuple[Counter[str], int, int, bool]:
    """Print one line about a trace; return shares by category, tensors with a layer, named, problem."""
    recording = open_measured(path)
    rows = own_rows(recording)
    named = rows[rows["op"].astype(str).str.contains("/") & rows["part_of"].isna()]
    layers = int((named["layer"] != "").sum())
    sums = rows.groupby("category", observed=True)["requested_bytes"].sum()
    shares = Counter({str(name): size / max(sums.sum(), 1) for name, size in sums.items()})
    differs = recording.integrity is not None and recording.integrity.events_disagreeing > 0
    has_card = recording.device.name != recording.allocator
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares.most_common() if share >= 0.001)
    print(
        f"{path.name[-40:]:40s} steps {len(recording.steps):3d}  {recording.device.name:32s} "
        f"layers {layers / max(len(named), 1):.1%}  {text}"
    )
    for _, group in rows.groupby(["category", "role"], observed=True):
        chosen = group.sample(min(SAMPLES, len(group)), random_state=0)
        samples += [[path.name, *row] for row in chosen[list(COLUMNS)].itertuples(index=False)]
    return shares, layers, len(named), differs or not recording.steps or not has_card


def cover_folder(folder: Path, table: Path | None) -> None:
    """Print the coverage of all traces in a folder."""
    total: Counter[str] = Counter()
    samples: list[list[object]] = []
    files = sorted(folder.glob("**/*.xplane.pb*"))
    layers = named = problems = 0
    for path in files:
        try:
            shares, with_layer, count, is_problem = cover(path, samples)
        except AnalyzerError as error:
            print(f"{path.name[-40:]:40s} {error}")
            problems += 1
            continue
        total += shares
        layers, named, problems = layers + with_layer, named + count, problems + is_problem
    print(f"{len(files)} files, {problems} without steps or card, unreadable, or with other sums")
    print(f"layers {layers / max(named, 1):.2%} of {named:,} tensors with a scope in their name")
    print(", ".join(f"{name} {share / max(len(files), 1):.1%}" for name, share in total.most_common()))
    if table is not None:
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([("file", *COLUMNS), *samples])


def compare(run: Path, *, bare: bool) -> float:
    """Return the share of the bytes that keep their category without the graph."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        shutil.copytree(run, copy)
        (copy / "graph.json.gz").unlink(missing_ok=True)
        if bare:
            (copy / "run.json").unlink()
        else:
            note = json.loads((copy / "run.json").read_text())
            (copy / "run.json").write_text(json.dumps({**note, "graph": ""}))
        with_graph, without = (own_rows(open_measured(path)) for path in (run, copy))
    with_graph, without = (
        rows.assign(number=rows.groupby(["address", "instruction"], observed=True).cumcount())
        for rows in (with_graph, without)
    )
    both = with_graph.merge(without, how="left", on=["address", "instruction", "number"])
    is_same = both["category_x"].astype(str) == both["category_y"].astype(str)
    return float(both["requested_bytes_x"][is_same].sum() / both["requested_bytes_x"].sum())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--bare", action="store_true")
    given = parser.parse_args(arguments)
    if not given.compare:
        cover_folder(given.paths[0], given.csv)
        return
    shares = {path.name: compare(path, bare=given.bare) for path in given.paths}
    for name, share in shares.items():
        print(f"{name:20s} {share:.2%}")
    print(f"least {min(shares.values()):.2%}, mean {sum(shares.values()) / len(shares):.2%}")


if __name__ == "__main__":
    main()

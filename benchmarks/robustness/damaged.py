"""Damage traces in every plausible way and count what is said of it.

    python benchmarks/robustness/damaged.py [--count 2000] [--seed 1] [--sample NAME]
        [--alone] [--only DAMAGE]

Each damaged trace has to be refused in one line, or announced before any figure, or its peak and
categories have to be those of the whole one; a request altered within the 256 bytes to which the
allocator rounds is counted apart. ``--alone`` opens the trace without the note of the
capture beside it, as a trace of others, without the damages that leave such a trace as another run
might have written. Fails where a damage is silent or anything breaks, or where
a whole trace is called damaged.

Figures: none; tests/unit/tracing/test_damaged_traces.py checks a part of the damages.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent), str(ROOT / "tests")]

from builders import SAMPLES, sample_folder, sample_trace  # noqa: E402
from damages import DAMAGES, SHORTER, Subject  # noqa: E402

from analyzer.explain.trace_integrity import trust_figures  # noqa: E402
from analyzer.model.contract.child_messages import WhatIf  # noqa: E402
from analyzer.model.errors import InputError  # noqa: E402
from analyzer.model.units import GRANULE_BYTES  # noqa: E402
from analyzer.session.opening import explain  # noqa: E402
from analyzer.tracing.measure.measured_recording import measure  # noqa: E402
from analyzer.tracing.parse.protobuf import Space  # noqa: E402
from analyzer.tracing.parse.run_folder import RunNote, read_run  # noqa: E402
from analyzer.tracing.parse.xplane import read_trace  # noqa: E402

RATES = (0.0, 0.001, 0.01, 0.1)
OUTCOMES = (
    "refused",
    "announced",
    "same",
    "below 256 B",
    "categories",
    "peak",
    "broke",
)
BAD = OUTCOMES[4:]


@dataclass(frozen=True)
class Shown:
    """What a reader sees first of a trace."""

    peak: tuple[int, int]
    categories: dict[str, int]
    says: tuple[str, ...]


def show(space: Any, note: RunNote | None, path: Path) -> Shown:
    """Open a trace as the command does, but for its report."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        file.write_bytes(space.SerializeToString())
        raw = read_trace(file)
    analysis = explain(measure(raw, note, path), WhatIf(), search=False)
    trust = trust_figures(analysis)
    assert trust is not None
    peak = analysis.peak
    says = (*trust.says, *analysis.recording.warnings)
    return Shown(
        (peak.requested_bytes, peak.allocated_bytes), analysis.categories, says
    )


def outcome_of(
    whole: Shown, space: Any, note: RunNote | None, path: Path
) -> tuple[str, str]:
    """Return what came of a damaged trace, in a word, and what was said."""
    try:
        shown = show(Space.FromString(space.SerializeToString()), note, path)
    except (InputError, DecodeError) as refusal:
        return "refused", str(refusal)
    except Exception as error:  # whatever it is, it is counted
        return "broke", f"{type(error).__name__}: {error}"
    if new := [line for line in shown.says if line not in whole.says]:
        return "announced", new[0]
    if (moved := _moved(whole, shown)) is None:
        return "same", ""
    return moved, f"{whole} became {shown}"


def _moved(whole: Shown, shown: Shown) -> str | None:
    """Return what moved; a request may pass for another one of as many times 256 bytes."""
    if whole.peak == shown.peak and whole.categories == shown.categories:
        return None
    moved = [
        abs(shown.categories[name] - size) for name, size in whole.categories.items()
    ]
    if whole.peak[1] == shown.peak[1] and max(moved) < GRANULE_BYTES:
        return "below 256 B"
    return "categories" if whole.peak == shown.peak else "peak"


def cases(
    count: int, seed: int, sizes: dict[str, int], names: list[str]
) -> Iterator[tuple[str, str, float, str]]:
    """Yield sample, damage, rate and seed of each case; every damage as often, small traces more."""
    rng = random.Random(seed)
    weights = [1 / size for size in sizes.values()]
    for number in range(count):
        rate = RATES[number // len(names) % len(RATES)]
        sample = rng.choices(list(sizes), weights)[0]
        yield sample, names[number % len(names)], rate, f"{seed}-{number}"


def damaged(
    content: dict[str, bytes], sample: str, name: str, rate: float, seed: str
) -> Any:
    """Return a sample's trace with one kind of damage in it."""
    rng = random.Random(seed)
    other = rng.choice([one for one in content if one != sample] or [sample])
    space, mixed = (Space.FromString(content[one]) for one in (sample, other))
    DAMAGES[name](Subject(space, rng, rate, mixed))
    return space


def run(arguments: argparse.Namespace) -> Counter[tuple[str, str]]:
    """Run all cases; print what is bad; return how often each damage had each outcome."""
    samples = [arguments.sample] if arguments.sample else list(SAMPLES)
    content = {
        name: gzip.decompress(sample_trace(name).read_bytes()) for name in SAMPLES
    }
    notes = {
        name: None if arguments.alone else read_run(sample_folder(name) / "run.json")
        for name in samples
    }
    whole = {
        name: show(Space.FromString(content[name]), notes[name], sample_trace(name))
        for name in samples
    }
    found: Counter[tuple[str, str]] = Counter()
    for name, shown in whole.items():
        if any("ncomplete" in line for line in shown.says):
            found["nothing", "false alarm"] += 1
            print(f"FALSE ALARM {name}: {shown.says}", flush=True)
    names = [
        name
        for name in DAMAGES
        if arguments.only in name and not (arguments.alone and name in SHORTER)
    ]
    sizes = {name: len(content[name]) for name in samples}
    for sample, name, rate, seed in cases(
        arguments.count, arguments.seed, sizes, names
    ):
        space = damaged(content, sample, name, rate, seed)
        outcome, said = outcome_of(
            whole[sample], space, notes[sample], sample_trace(sample)
        )
        found[name, outcome] += 1
        found[sample, "cases"] += 1
        if outcome in BAD or arguments.verbose:
            print(
                f"{outcome.upper()}: {name} of {sample} at {rate:g} ({seed}): {said[:400]}",
                flush=True,
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", choices=SAMPLES)
    parser.add_argument(
        "--only", default="", help="damages with this text in their name"
    )
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    found = run(parser.parse_args())
    print(f"\n{'damage':36}" + "".join(f"{name:>12}" for name in OUTCOMES))
    for name in DAMAGES:
        row = [found[name, outcome] for outcome in OUTCOMES]
        if any(row):
            print(f"{name:36}" + "".join(f"{number:>12}" for number in row))
    total = [
        sum(n for (_, o), n in found.items() if o == outcome) for outcome in OUTCOMES
    ]
    print(f"{'all':36}" + "".join(f"{number:>12}" for number in total))
    print(", ".join(f"{name}: {found[name, 'cases']}" for name in SAMPLES))
    bad = sum(
        n for (_, outcome), n in found.items() if outcome in (*BAD, "false alarm")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

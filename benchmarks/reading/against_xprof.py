"""How long reading a trace takes beside XProf's own conversion of the same file, both in one run.

XProf makes its memory profile (at most 1,000 points of a trace); the analyzer makes the table of all
events. Each is called in turn, in one process that has both imported; CPU seconds, the median of the
rounds. The peaks have to be equal. With ``--most RATIO`` it ends with 1 where the ratio is above that.

    python benchmarks/reading/against_xprof.py --events 75000 1000000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[2]))

from xprof.convert import raw_to_tool_data

from analyzer.tracing.parse.xplane import read_trace
from benchmarks.reading.large_trace import write_trace


def seconds(call: Callable[[], int]) -> tuple[float, int]:
    """Return the CPU seconds that a call takes, and what it returns."""
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def peak_of_xprof(path: Path) -> int:
    data, _ = raw_to_tool_data.xspace_to_tool_data(
        [str(path)], "memory_profile", {"use_saved_result": False}
    )
    profiles = json.loads(data)["memoryProfilePerAllocator"]
    return max(
        int(profile["profileSummary"]["peakStats"]["heapAllocatedBytes"])
        for profile in profiles.values()
    )


def peak_of_ours(path: Path) -> int:
    return int(read_trace(path).events["in_use_bytes"].max())


def compare(events: int, rounds: int) -> float:
    """Print one line of the table; return the ratio.

    Raises:
        AssertionError: the two say different peaks.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plugins" / "profile" / "run" / "host.xplane.pb"
        path.parent.mkdir(parents=True)
        written = write_trace(path, memory_events=events)
        size = path.stat().st_size
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(seconds(lambda: peak_of_ours(path)))
            theirs.append(seconds(lambda: peak_of_xprof(path)))
    assert {peak for _, peak in ours} == {peak for _, peak in theirs}, (ours, theirs)
    mine, other = (median(taken for taken, _ in all_) for all_ in (ours, theirs))
    ratio = mine / other
    print(
        f"| {written:,} | {size / 2**20:.1f} MiB | {mine:.2f} s | {other:.2f} s | {ratio:.2f} |"
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[75_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=None)
    given = parser.parse_args()
    print("| memory events | file | analyzer | XProf | ratio |")
    print("|---|---|---|---|---|")
    ratios = [compare(events, given.rounds) for events in given.events]
    if given.most is not None and max(ratios) > given.most:
        sys.exit(
            f"Reading takes {max(ratios):.2f} of XProf's time, more than {given.most}."
        )


if __name__ == "__main__":
    main()

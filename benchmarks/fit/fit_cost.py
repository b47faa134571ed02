"""What ``analyze fit`` costs over one ``analyze estimate`` at the batch found: wall and CPU seconds.

    python benchmarks/fit/fit_cost.py TARGET [OPTION …]     # fit's options
    python benchmarks/fit/fit_cost.py keras:MobileNetV2 --gpu t4 --no-confirm

Both are whole commands with all their children, one after the other, each with a copy of the cache
that lacks XLA's plans. The row says what the answer is and what was captured, planned and run for it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from analyzer.model.user_cache import VARIABLE, cache_folder

COMMAND = Path(__file__).resolve().parents[2] / "cli.py"
OF_FIT = ("--confirm", "--no-confirm")
NOT_FIT = 3
"""Exit code where the step does not fit: an answer too."""


def seconds_of(cache: Path, *arguments: str) -> tuple[float, float]:
    """Run a command of ours; return its wall seconds and CPU seconds, children included.

    Args:
        cache: Where the copy of the cache is made.
        *arguments: The command.

    Raises:
        SystemExit: it failed.
    """
    kept = cache_folder()
    if kept is not None and kept.is_dir():
        shutil.copytree(kept, cache, ignore=shutil.ignore_patterns("*.plan.gz"))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", VARIABLE: str(cache)}
    ended = subprocess.run(
        [sys.executable, str(COMMAND), *arguments], env=environment, capture_output=True, text=True
    )
    wall_s = time.monotonic() - began
    if ended.returncode not in (0, NOT_FIT):
        raise SystemExit(f"{' '.join(arguments)} failed: {ended.stderr.strip()[-400:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def told(answer: dict[str, Any]) -> str:
    """Return an answer in a line: the sizes, and what was captured, planned and run."""
    forms = answer["forms"]
    words = [f"largest {answer['largest']}, in each {answer['in_each']}, safe {answer['safe']}"]
    for key in ("captured_at", "planned_at"):
        if forms.get(key):
            words.append(f"{key.partition('_')[0]} {', '.join(map(str, forms[key]))}")
    confirmation = answer.get("confirmation")
    if confirmation:
        runs = [
            f"{run['size']} {'ran' if run['ran'] else 'did not'}" for run in confirmation["runs"]
        ]
        words.append(f"predicted {confirmation['predicted']}: {', '.join(runs)}")
    return "; ".join(words)


def main(target: str, options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "answer.json"
        fit = seconds_of(folder / "of-fit", "fit", target, *options, "-q", "--json", str(file))
        answer = json.loads(file.read_text())
        size = str(max(answer["largest"], 1))
        others = [option for option in options if option not in OF_FIT]
        asked = ("estimate", target, *others, "--batch-size", size, "-q")
        estimate = seconds_of(folder / "of-it", *asked, "--out", str(folder / "run"))
    for name, ours, one in zip(("wall", "CPU"), fit, estimate, strict=True):
        print(f"{name}: {ours:.1f} s over {one:.1f} s = {ours / one:.1f}", end="; ")
    print(told(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

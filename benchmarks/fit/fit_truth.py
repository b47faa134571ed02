"""Hold ``analyze fit`` against real runs: the batch found under a limit, and what remedies save.

Does the batch found run, and the next one not; predicted against measured saving (CPU):

    python benchmarks/fit/fit_truth.py limits cpu|CARD MODEL=LIMIT …
    python benchmarks/fit/fit_truth.py remedies MODEL=BATCH[@REMEDY,REMEDY] …
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median_low

from analyzer.batch_fit.confirming_runs import _run
from analyzer.batch_fit.fit_target import FitQuestion, answered
from analyzer.batch_fit.remedied_steps import tried_remedies
from analyzer.batch_fit.remedy_plans import plans_for
from analyzer.batch_fit.step_access import BatchCaptures, access_of
from analyzer.capture.targets.target_spec import parse_target
from analyzer.contract.messages.capture_request import CaptureOptions
from analyzer.errors import AnalyzerError
from analyzer.opening import open_result
from analyzer.units import parse_bytes

MODELS = Path(__file__).with_name("fit_models.py")


def _silent(stage: str, share: float) -> None:
    pass


def _spec(name: str):
    return parse_target(name if ":" in name else f"{MODELS}:{name}")


def limits(device: str, cases: list[str]) -> None:
    print("| model | limit | found | safe | found runs | next runs | safe runs |", flush=True)
    print("|---|--:|--:|--:|---|---|---|")
    for case in cases:
        name, _, limit = case.rpartition("=")
        card = "" if device == "cpu" else device
        options = CaptureOptions(jit=False, gpu=card, device="gpu" if card else "cpu")
        question = FitQuestion(limit_bytes=parse_bytes(limit), confirm=False)
        with access_of(_spec(name)) as access:
            answer, _ = answered(access, options, question, _silent)
            chosen = replace(options, steps=3, memory_limit_bytes=parse_bytes(limit))
            ran = {
                size: _run(access, replace(chosen, batch_size=size)).ran
                for size in dict.fromkeys((answer.largest, answer.largest + 1, answer.safe))
                if size
            }
        told = ["yes" if ran.get(size) else "no" for size in
                (answer.largest, answer.largest + 1, answer.safe)]  # fmt: skip
        found = f"{answer.largest} | {answer.safe}"
        print(f"| {name} | {limit} | {found} | {' | '.join(told)} |", flush=True)


def _measured(access, options: CaptureOptions, name: str) -> int:
    """Return the middle peak of a few runs: each takes an order of its own."""
    peaks = []
    for number in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            made = access.run(replace(options, steps=3), Path(folder) / f"{name}{number}")
            peaks.append(int(open_result(made, search=False).peak_bytes))
    return median_low(peaks)


def remedies(cases: list[str]) -> None:
    print("| model | remedy | predicted saving | measured saving | off, of the peak |", flush=True)
    print("|---|---|--:|--:|--:|")
    for case in cases:
        name, _, rest = case.rpartition("=")
        batch, _, chosen = rest.partition("@")
        options = CaptureOptions(jit=False, device="cpu", batch_size=int(batch), inter_op_threads=1)
        with access_of(_spec(name)) as access:
            note = BatchCaptures(access, options, "plans").note(int(batch))
            plans = {plan.id: plan for plan in plans_for(options, note) if plan.id != "jit"}
            names = chosen.split(",") if chosen else [each for each in plans if each not in SKIPPED]
            found = tried_remedies(access, options, names, None, None, _silent)
            before = _measured(access, options, "before")
            for remedy in found:
                try:
                    after = _measured(access, plans[remedy.id].options, remedy.id)
                except AnalyzerError as error:
                    print(
                        f"| {name} | {remedy.id} | {remedy.saves_bytes} | {error} | |", flush=True
                    )
                    continue
                if remedy.saves_bytes is None:
                    print(f"| {name} | {remedy.id} | {remedy.failed} | {before - after:,} | |")
                    continue
                off = (remedy.saves_bytes - (before - after)) / before
                print(
                    f"| {name} | {remedy.id} | {remedy.saves_bytes:,} | {before - after:,} | "
                    f"{off:+.2%} |",
                    flush=True,
                )


RUNS = 3
SKIPPED = ("optimizer-lamb", "optimizer-nadam", "optimizer-adam")

if __name__ == "__main__":
    if sys.argv[1] == "limits":
        limits(sys.argv[2], sys.argv[3:])
    else:
        remedies(sys.argv[2:])

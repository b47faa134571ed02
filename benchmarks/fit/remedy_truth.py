"""Compare the predicted savings of remedies with traces.

    python benchmarks/fit/remedy_truth.py MODEL=BATCH[@REMEDY,REMEDY] …

Options: ``--runs=N`` traces N processes, each with its own schedule; ``--threads`` uses TensorFlow's
number of inter-op threads instead of one; ``--jit`` compiles with XLA; ``--card=NAME`` uses a simulated
card.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median_low

from analyzer.capture.process.launch import capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.remedy_plans import plan_remedies
from analyzer.fitting.step_access import access_target, estimate_step
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.report.subject import StepRemedy
from analyzer.model.errors import AnalyzerError
from analyzer.model.recording.timeline import find_peak, main_allocator_rows, timeline
from analyzer.session.opening import open_result

MODELS = [
    Path(__file__).with_name(name)
    for name in (
        *("fit_models.py", "held_back_models.py", "further_models.py"),
        *("layer_kinds.py", "written_loops.py", "remedy_models.py"),
    )
]


def _report(stage: str, share: float) -> None:
    print(f"{stage} ({share:.0%})", file=sys.stderr, flush=True)


def _spec(name: str):
    """Return a target: a path with a colon, or a function in one of the files of models."""
    if ":" in name:
        return parse_target(name)
    file = next(
        file for file in MODELS if f"def {name}(" in file.read_text(encoding="utf-8")
    )
    return parse_target(f"{file}:{name}")


def _measured(spec, options: CaptureOptions, name: str) -> list[int]:
    """Return the peaks of a few steps of a few processes.

    With gradient accumulation steps differ, so only the last one counts.
    """
    peaks = []
    steps = 3 if "accumulate" in options.remedy else STEPS
    for number in range(1 if CARD else RUNS):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / f"{name}{number}"
            made = capture(
                spec,
                replace(options, steps=steps),
                out,
                force=False,
                progress=_report,
                kind="run",
            )
            recording = open_result(made, search=False).recording
            line = timeline(main_allocator_rows(recording), len(recording.events))
            shown = recording.steps[-1:] if steps == 3 else recording.steps[2:]
            peaks += [
                find_peak(line, one.first, one.last).requested_bytes for one in shown
            ]
    return sorted(peaks)


def remedies(cases: list[str]) -> None:
    print(
        "| model | remedy | predicted | measured | off, of the peak | runs | in range |",
        flush=True,
    )
    print("|---|---|--:|--:|--:|---|---|")
    for case in cases:
        name, _, rest = case.rpartition("=")
        batch, _, chosen = rest.partition("@")
        threads = {} if DEFAULT_THREADS or CARD else {"inter_op_threads": 1}
        options = CaptureOptions(
            jit=JIT,
            gpu=CARD,
            device="gpu" if CARD else "cpu",
            batch_size=int(batch),
            **threads,
        )
        with access_target(_spec(name)) as access:
            note = estimate_step(access, options, "plans").note
            plans = {plan.id: plan for plan in plan_remedies(options, note)}
            usual = [each.id for each in plans.values() if not each.is_named_only]
            names = chosen.split(",") if chosen else usual
            trial = RemedyTrial(access, options, None, _report)
            found = try_remedies(trial, names, access.folder / "plans")
            before = _measured(_spec(name), options, "before")
            for remedy in found:
                if remedy.saves_bytes is None:
                    print(
                        f"| {name} | {remedy.id} | {remedy.failed} | | | | |",
                        flush=True,
                    )
                    continue
                try:
                    after = _measured(_spec(name), plans[remedy.id].options, remedy.id)
                except AnalyzerError as error:
                    print(
                        f"| {name} | {remedy.id} | {remedy.saves_bytes:,} | {error} | | | |",
                        flush=True,
                    )
                    continue
                print(_row(name, remedy, before, after), flush=True)


def _row(name: str, remedy: StepRemedy, before: list[int], after: list[int]) -> str:
    """Return a row of the table; its range covers any run before and any run after."""
    middle = median_low(before)
    saved = middle - median_low(after)
    off = (remedy.saves_bytes - saved) / middle
    least, most = before[0] - after[-1], before[-1] - after[0]
    cells = [
        name,
        remedy.id,
        f"{remedy.saves_bytes / MIB:.2f}",
        f"{saved / MIB:.2f}",
        f"{off:+.1%}",
        f"{least / MIB:.2f} to {most / MIB:.2f}",
        "yes" if least <= remedy.saves_bytes <= most else "no",
    ]
    return f"| {' | '.join(cells)} |"


MIB = 1 << 20
STEPS = 8
DEFAULT_THREADS = "--threads" in sys.argv
JIT = "--jit" in sys.argv


def _given(name: str, default: str) -> str:
    start = f"--{name}="
    return next(
        (word.removeprefix(start) for word in sys.argv if word.startswith(start)),
        default,
    )


CARD = _given("card", "")
CASES = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
RUNS = int(_given("runs", "1"))

if __name__ == "__main__":
    remedies(CASES)

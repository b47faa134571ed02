"""Hold ``analyze fit`` against real runs: the batch found under a limit, and what remedies save.

Does the batch found run, and the next one not; predicted against measured saving (CPU):

    python benchmarks/fit/fit_truth.py limits cpu|CARD MODEL=LIMIT …
    python benchmarks/fit/fit_truth.py confirmed CARD MODEL=LIMIT …
    python benchmarks/fit/fit_truth.py remedies MODEL=BATCH[@REMEDY,REMEDY] …

``--runs=N`` measures N processes of each: one alone keeps the order that its executor begins with.
With ``--threads`` steps run with TensorFlow's own number of threads on a CPU, else with one between ops;
with ``--jit`` remedies are held against runs of what XLA compiles, with ``--card=NAME`` on a
phantom card.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median_low

from analyzer.capture.targets.target_spec import parse_target
from analyzer.fitting.search.confirming_runs import run_at
from analyzer.fitting.search.fit_target import FitQuestion, answered
from analyzer.fitting.search.remedied_steps import tried_remedies
from analyzer.fitting.search.remedy_plans import plans_for
from analyzer.fitting.search.step_access import BatchCaptures, access_of
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.report.finding import StepRemedy
from analyzer.model.errors import AnalyzerError
from analyzer.model.recording.timeline import find_peak, main_allocator_rows, timeline
from analyzer.model.units import parse_bytes
from analyzer.session.opening import open_result

MODELS = [
    Path(__file__).with_name(name)
    for name in (
        *("fit_models.py", "held_back_models.py", "further_models.py"),
        *("layer_kinds.py", "written_loops.py", "remedy_models.py"),
    )
]


def _silent(stage: str, share: float) -> None:
    pass


def _told(stage: str, share: float) -> None:
    print(f"{stage} ({share:.0%})", file=sys.stderr, flush=True)


def _spec(name: str):
    """Return a target: what has a colon, else a name in one of the files of models."""
    if ":" in name:
        return parse_target(name)
    file = next(file for file in MODELS if f"def {name}(" in file.read_text(encoding="utf-8"))
    return parse_target(f"{file}:{name}")


def limits(device: str, cases: list[str]) -> None:
    print(
        "| model | limit | found | in each order | safe | found runs | first that does not "
        "| in each runs | safe runs | captures |"
    )
    print("|---|--:|--:|--:|--:|---|---|---|---|--:|", flush=True)
    card = "" if device == "cpu" else device
    threads = {} if DEFAULT_THREADS or card else {"inter_op_threads": 1}
    for case in cases:
        name, _, limit = case.rpartition("=")
        options = CaptureOptions(jit=False, gpu=card, device="gpu" if card else "cpu", **threads)
        question = FitQuestion(limit_bytes=parse_bytes(limit), confirm=False)
        with access_of(_spec(name)) as access:
            answer, _ = answered(access, options, question, _silent)
            chosen = replace(options, steps=3, memory_limit_bytes=parse_bytes(limit))

            def ran(size: int, access=access, chosen=chosen) -> bool:
                return run_at(access, replace(chosen, batch_size=size), size).ran

            largest, safe = answer.largest, answer.safe
            runs = ran(largest)
            beyond = (
                next((f"+{n}" for n in (1, 2) if not ran(largest + n)), "later") if runs else ""
            )
            tried = {largest: runs}
            for size in (answer.in_each, safe):
                if size and size not in tried:
                    tried[size] = ran(size)
            told = [
                {True: "yes", False: "no", None: "-"}[tried.get(size)]
                for size in (largest, answer.in_each, safe)
            ]
        cells = [
            *(name, limit, largest, answer.in_each, safe),
            *(told[0], beyond, *told[1:]),
            len(answer.forms.captured_at),
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def found_by_runs(card: str, cases: list[str]) -> None:
    """Print what is predicted for a card beside what the runs of ``--confirm`` find."""
    print("| model | limit | predicted | safe | runs | the next | off | runs made | captures |")
    print("|---|--:|--:|--:|--:|---|--:|--:|--:|", flush=True)
    options = CaptureOptions(jit=JIT, gpu=card, device="gpu")
    for case in cases:
        name, _, limit = case.rpartition("=")
        question = FitQuestion(limit_bytes=parse_bytes(limit), confirm=True)
        with access_of(_spec(name)) as access:
            answer, _ = answered(access, options, question, _silent)
        done = answer.confirmation
        ran = {run.size: run.ran for run in done.runs}
        told = {True: "runs", False: "does not", None: "not run"}[ran.get(answer.largest + 1)]
        off = (done.predicted - answer.largest) / max(answer.largest, 1)
        cells = [
            *(name, limit, done.predicted, answer.safe, answer.largest, told, f"{off:+.2%}"),
            *(" ".join(f"{size}{'+' if ran[size] else '-'}" for size in sorted(ran)),),
            len(answer.forms.captured_at),
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _measured(access, options: CaptureOptions, name: str) -> list[int]:
    """Return the peaks of a few steps of a few processes: each takes an order of its own.

    Where a counter decides what a step does (accumulation), that of the step that is shown alone.
    """
    peaks = []
    steps = 3 if "accumulate" in options.remedy else STEPS
    for number in range(1 if CARD else RUNS):
        with tempfile.TemporaryDirectory() as folder:
            made = access.run(replace(options, steps=steps), Path(folder) / f"{name}{number}")
            recording = open_result(made, search=False).recording
            line = timeline(main_allocator_rows(recording), len(recording.events))
            shown = recording.steps[-1:] if steps == 3 else recording.steps[2:]
            peaks += [find_peak(line, one.first, one.last).requested_bytes for one in shown]
    return sorted(peaks)


def remedies(cases: list[str]) -> None:
    print(
        "| model | remedy | predicted | measured | off, of the peak | runs | in range |", flush=True
    )
    print("|---|---|--:|--:|--:|---|---|")
    for case in cases:
        name, _, rest = case.rpartition("=")
        batch, _, chosen = rest.partition("@")
        threads = {} if DEFAULT_THREADS or CARD else {"inter_op_threads": 1}
        options = CaptureOptions(
            jit=JIT, gpu=CARD, device="gpu" if CARD else "cpu", batch_size=int(batch), **threads
        )
        with access_of(_spec(name)) as access:
            captures = BatchCaptures(access, options, "plans")
            plans = {p.id: p for p in plans_for(options, captures.note(int(batch)))}
            usual = [each.id for each in plans.values() if not each.is_named_only]
            names = chosen.split(",") if chosen else usual
            made = access.folder / "plans" / batch
            found = tried_remedies(access, options, names, None, None, _told, made)
            before = _measured(access, options, "before")
            for remedy in found:
                if remedy.saves_bytes is None:
                    print(f"| {name} | {remedy.id} | {remedy.failed} | | | | |", flush=True)
                    continue
                try:
                    after = _measured(access, plans[remedy.id].options, remedy.id)
                except AnalyzerError as error:
                    print(
                        f"| {name} | {remedy.id} | {remedy.saves_bytes:,} | {error} | | | |",
                        flush=True,
                    )
                    continue
                print(_row(name, remedy, before, after), flush=True)


def _row(name: str, remedy: StepRemedy, before: list[int], after: list[int]) -> str:
    """Return a line of the table; the range is that of any run before and any after."""
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
    return next((word.removeprefix(start) for word in sys.argv if word.startswith(start)), default)


CARD = _given("card", "")
CASES = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
RUNS = int(_given("runs", "1"))

if __name__ == "__main__":
    if sys.argv[1] == "confirmed":
        found_by_runs(sys.argv[2], CASES[2:])
    elif sys.argv[1] == "limits":
        limits(sys.argv[2], CASES[2:])
    else:
        remedies(CASES[1:])

"""Findings about the step's settings, and about memory that ops and chunks take beside tensors."""

from collections.abc import Iterator
from typing import Final

from analyzer.explain.analysis import LOW, Analysis, saved_without, severity_of
from analyzer.explain.buffer_words import TEXTS, describe_buffer, describe_largest
from analyzer.model.choice import Category
from analyzer.model.recording.records import Finding, Kind, Severity
from analyzer.model.recording.schema import FIXED_ROLES, TRIAL_ROLE
from analyzer.model.recording.timeline import alive_at
from analyzer.model.units import format_bytes

_STATE_RATIO: Final = 0.2  # share of the peak from which on optimizer state is reported
THREADS_RATIO: Final = 0.03  # share of the peak that one inter-op thread has to save
_NAMES: Final = 3  # variables in a detail


def find_state(analysis: Analysis) -> Iterator[Finding]:
    """Report optimizer state that is a large share of the peak."""
    categories = analysis.categories
    peak = analysis.peak.requested_bytes
    state = categories[Category.OPTIMIZER_STATE.value]
    parameters = categories[Category.PARAMETER.value]
    if not peak or state < _STATE_RATIO * peak:
        return
    optimizer = analysis.recording.step_config.optimizer or "The optimizer"
    one_slot = max(state - parameters, 0)
    saves = one_slot if one_slot >= LOW * peak else state
    change = "Plain SGD without momentum needs no state"
    if saves == one_slot:
        change = (
            "An optimizer with one slot per parameter (SGD with momentum, Lion, Adagrad) saves "
            f"{format_bytes(one_slot)}; plain SGD needs no state"
        )
    factor = f"It is {state / parameters:.1f} times the parameters. " if parameters else ""
    yield Finding(
        id="optimizer-state",
        severity=severity_of(saves, peak),
        title=f"{optimizer}'s state takes {format_bytes(state)} ({state / peak:.0%} of the peak)",
        detail=f"{factor}{TEXTS['optimizer-state'].format(change=change)}",
        saves_bytes=saves,
        evidence=(
            {"what": "optimizer state", "requested_bytes": state},
            {"what": "parameters", "requested_bytes": parameters},
        ),
    )


def find_threads(analysis: Analysis) -> Iterator[Finding]:
    """Report the saving of a predicted step if its ops run one after the other."""
    recording, peak = analysis.recording, analysis.peak.requested_bytes
    schedules = () if recording.uncertainty is None else recording.uncertainty.schedules
    one = next((each for each in schedules if each.inter_op_threads == 1), None)
    if recording.kind is not Kind.ESTIMATE or one is None or len(schedules) < 2:
        return
    shown = schedules[0]
    saves = shown.requested_bytes - one.requested_bytes
    if saves < THREADS_RATIO * peak:
        return
    yield Finding(
        id="ops-side-by-side",
        severity=severity_of(saves, peak),
        title=f"Parallel ops on {shown.inter_op_threads} inter-op threads add {format_bytes(saves)}",
        detail=TEXTS["ops-side-by-side"].format(peak=format_bytes(one.requested_bytes)),
        saves_bytes=saves,
        evidence=tuple(
            {
                "what": f"{each.inter_op_threads} inter-op threads",
                "requested_bytes": each.requested_bytes,
            }
            for each in schedules
        ),
    )


def find_recompiled(analysis: Analysis) -> Iterator[Finding]:
    """Report functions that XLA compiles again in every step."""
    recording = analysis.recording
    for one in recording.recompiled_functions:
        if recording.kind.ran and one.compilations <= 1:
            continue
        # On a card the old values are copied to the host and take no card memory.
        kept = one.variable_bytes if recording.device.kind == "cpu" else 0
        title = f"XLA compiles {one.op} again in every step"
        if recording.kind.ran:
            count = len(recording.steps)
            title = f"XLA compiled {one.op} {one.compilations} times in {count} steps"
        if kept:
            title += f"; each compilation keeps {format_bytes(kept)}"
        names = (*one.variables, *one.inputs)
        shown = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
        where = "memory" if kept else "the host's memory"
        yield Finding(
            id="compiled-anew",
            severity=Severity.HIGH,
            title=title,
            detail=TEXTS["compiled-anew"].format(
                op=one.because, count=len(names), shown=shown, where=where
            ),
            saves_bytes=kept or None,
            evidence=tuple({"what": "compiled in", "name": name} for name in names),
        )


def find_workspaces(analysis: Analysis) -> Iterator[Finding]:
    """Report workspaces that are alive at the peak, and the most that smaller ones can save."""
    rows, peak = analysis.rows, analysis.peak.requested_bytes
    own = rows[(rows["category"] == Category.WORKSPACE.value) & ~rows["role"].isin(FIXED_ROLES)]
    at_peak = own[own.index.isin(analysis.alive.index) & (own["role"] != TRIAL_ROLE)]
    total = int(at_peak["requested_bytes"].sum())
    if not total or total < LOW * peak:
        return
    saves = saved_without(analysis, own["requested_bytes"], own["born"], own["dies"])
    row = at_peak.loc[at_peak["requested_bytes"].idxmax()]
    size, algorithm = int(row["requested_bytes"]), str(row["role"]).partition(", ")[2]
    where = f"{row['op']}" + (f" with the algorithm {algorithm}" if algorithm else "")
    yield Finding(
        id="workspace",
        severity=severity_of(saves, peak),
        title=f"Workspaces of convolutions take {format_bytes(total)} ({total / peak:.0%} of the peak)",
        detail=TEXTS["workspace"].format(
            size=format_bytes(size),
            where=where,
            limit=max(size // 2 >> 20, 1),
            peak=format_bytes(peak - saves),
        ),
        saves_bytes=saves or None,
        evidence=describe_largest(at_peak),
    )


def find_trials(analysis: Analysis) -> Iterator[Finding]:
    """Report trials of algorithms that lift the highest peak of the trace."""
    instant, steps = analysis.peak_ever.requested_instant, analysis.recording.steps
    alive = alive_at(analysis.rows, instant)
    trials = alive[alive["role"] == TRIAL_ROLE]
    total = int(trials["requested_bytes"].sum())
    step = next((one for one in steps if one.first <= instant <= one.last), None)
    if not total or step is None or total < LOW * analysis.peak_ever.requested_bytes:
        return
    why = TEXTS["trials-at-first" if step is steps[0] else "trials-later"]
    yield Finding(
        id="algorithm-trials",
        severity=Severity.INFO,
        title=f"Trials of algorithms request {format_bytes(total)} at the highest peak of step "
        f"{step.index}",
        detail=f"{why} {TEXTS['algorithm-trials']}",
        evidence=describe_largest(trials),
    )


def find_internal_waste(analysis: Analysis) -> Iterator[Finding]:
    """Report unsplit chunks and rounding at the allocated peak."""
    waste, peak = analysis.fragmentation, analysis.peak.allocated_bytes
    if not waste.internal_bytes or not peak:
        return
    alive = alive_at(analysis.rows, waste.instant)
    lost = alive["allocated_bytes"] - alive["requested_bytes"]
    worst = alive.assign(waste_bytes=lost)[lost > 0].sort_values("waste_bytes", ascending=False)
    yield Finding(
        id="internal-fragmentation",
        severity=severity_of(waste.unsplit_bytes, peak),
        title=f"{format_bytes(waste.internal_bytes)} of the allocated peak are unused space inside "
        f"chunks ({waste.internal_bytes / peak:.1%})",
        detail=TEXTS["internal-fragmentation"].format(
            unsplit=format_bytes(waste.unsplit_bytes), rounding=format_bytes(waste.rounding_bytes)
        ),
        saves_bytes=waste.unsplit_bytes or None,
        saves_kind="allocated",
        evidence=tuple(
            describe_buffer(row, waste_bytes=int(row["waste_bytes"]))
            for row in worst.head(10).to_dict("records")
        ),
    )

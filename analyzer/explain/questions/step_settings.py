"""Findings about the step's settings, and about memory that ops and chunks take beside tensors."""

from collections.abc import Iterator
from typing import Final

from analyzer.explain.analysis import LOW, Analysis, saved_without, severity_of
from analyzer.explain.buffer_words import describe_buffer, describe_largest
from analyzer.model.choice import Category
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.schema import FIXED_ROLES, TRIAL_ROLE
from analyzer.model.recording.timeline import alive_at
from analyzer.model.units import format_bytes

_STATE_RATIO: Final = 0.2  # share of the peak from which on optimizer state is reported
_NAMES: Final = 3  # variables in a detail
_WASTE_ROWS: Final = 10


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
            "An optimizer with one slot per parameter (SGD with momentum, Lion, "
            f"Adagrad) saves {format_bytes(one_slot)}; plain SGD needs no state"
        )

    factor = (
        f"It is {state / parameters:.1f} times the parameters. " if parameters else ""
    )

    yield Finding(
        id="optimizer-state",
        severity=severity_of(saves, peak),
        title=f"{optimizer}'s state takes {format_bytes(state)} ({state / peak:.0%} of "
        "the peak)",
        detail=f"{factor}A smaller batch does not reduce it. {change}. Training fewer "
        "parameters (freezing, LoRA) reduces it in proportion.",
        saves_bytes=saves,
        evidence=(
            {"what": "optimizer state", "requested_bytes": state},
            {"what": "parameters", "requested_bytes": parameters},
        ),
    )


def find_recompiled(analysis: Analysis) -> Iterator[Finding]:
    """Report functions that XLA compiles again in every step."""
    count = len(analysis.recording.steps)
    for one in analysis.recording.recompiled_functions:
        if one.compilations < max(count, 2):
            continue
        yield Finding(
            id="compiled-anew",
            severity=Severity.HIGH,
            title=f"XLA compiled {one.op} {one.compilations} times in {count} steps",
            detail=(
                "A value that changes in every step is part of the compiled code, so each step "
                "compiles again, as slowly as the first, and the old values stay in the host's "
                "memory. Turn XLA off for this step (jit_compile=False, --no-jit), or use another "
                "optimizer: a frequent cause is an optimizer that divides an Embedding's sparse "
                "gradient and adds the result to a slot (Adadelta, RMSprop with momentum). Adam "
                "does not."
            ),
            evidence=({"what": "compilations", "count": one.compilations},),
        )


def find_workspaces(analysis: Analysis) -> Iterator[Finding]:
    """Report workspaces that are alive at the peak, and the most that smaller ones can save."""
    rows, peak = analysis.rows, analysis.peak.requested_bytes
    own = rows[
        (rows["category"] == Category.WORKSPACE.value) & ~rows["role"].isin(FIXED_ROLES)
    ]
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
        title=f"Workspaces of convolutions take {format_bytes(total)} "
        f"({total / peak:.0%} of the peak)",
        detail=(
            f"The largest is {format_bytes(size)} in {where}. cuDNN's fastest "
            "algorithm may need more memory than a slower one. Start with "
            f"TF_CUDNN_WORKSPACE_LIMIT_IN_MB={max(size // 2 >> 20, 1)} (by default "
            "4096, and 8192 in newer releases) to exclude it. Without any workspace "
            f"the peak falls to {format_bytes(peak - saves)}."
        ),
        saves_bytes=saves or None,
        evidence=describe_largest(at_peak),
    )


def find_internal_waste(analysis: Analysis) -> Iterator[Finding]:
    """Report unsplit chunks and rounding at the allocated peak."""
    waste, peak = analysis.fragmentation, analysis.peak
    if not waste.internal_bytes or not peak.allocated_bytes:
        return

    alive = alive_at(analysis.rows, peak.allocated_instant)
    lost = alive["allocated_bytes"] - alive["requested_bytes"]
    worst = alive.assign(waste_bytes=lost)[lost > 0]
    worst = worst.sort_values("waste_bytes", ascending=False).head(_WASTE_ROWS)
    internal = format_bytes(waste.internal_bytes)
    unsplit = format_bytes(waste.unsplit_bytes)
    rounding = format_bytes(waste.rounding_bytes)
    share = waste.internal_bytes / peak.allocated_bytes

    yield Finding(
        id="internal-fragmentation",
        severity=severity_of(waste.unsplit_bytes, peak.allocated_bytes),
        title=f"{internal} of the allocated peak are unused space inside chunks "
        f"({share:.1%})",
        detail=f"{unsplit} are in chunks that were not split because they are smaller "
        f"than twice the request, {rounding} come from rounding to 256 B. Use the same "
        "tensor sizes in every step, so that freed chunks can be reused, or set "
        "GPUOptions.experimental.internal_fragmentation_fraction, so that the "
        "allocator splits more chunks.",
        saves_bytes=waste.unsplit_bytes or None,
        saves_kind="allocated",
        evidence=tuple(
            describe_buffer(row, waste_bytes=int(row["waste_bytes"]))
            for row in worst.to_dict("records")
        ),
    )

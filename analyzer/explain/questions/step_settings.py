"""Findings about the step's settings, and about memory that ops and chunks take beside tensors."""

from collections.abc import Iterator
from typing import Final

from analyzer.explain.analysis import LOW, Analysis, saved_without
from analyzer.model.choice import Category
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.schema import FIXED_ROLES, TRIAL_ROLE
from analyzer.model.units import format_bytes

_STATE_RATIO: Final = 0.2  # share of the peak from which on optimizer state is reported


def find_state(analysis: Analysis) -> Iterator[Finding]:
    """Report optimizer state that is a large share of the peak."""
    alive = analysis.alive
    peak = analysis.peak.requested_bytes
    state = analysis.categories[Category.OPTIMIZER_STATE.value]
    # While an update runs, a variable may have two buffers.
    of_variables = alive[alive["category"] == Category.PARAMETER.value]
    once = of_variables.drop_duplicates("variable")
    parameters = int(once["requested_bytes"].sum())
    if state <= _STATE_RATIO * peak:
        return

    optimizer = analysis.recording.step_config.optimizer or "The optimizer"
    saves, change = state, "Plain SGD without momentum needs no state"
    if state > parameters:
        saves = state - parameters
        change = (
            "An optimizer with one slot per parameter (SGD with momentum, Lion, "
            f"Adagrad) saves {format_bytes(saves)}; plain SGD needs no state"
        )

    yield Finding(
        id="optimizer-state",
        severity=analysis.rate(saves),
        title=f"{optimizer}'s state takes {format_bytes(state)} ({state / peak:.0%} of "
        "the peak)",
        detail=f"A smaller batch does not reduce it. {change}. Training fewer "
        "parameters (freezing, LoRA) reduces it in proportion.",
        saves_bytes=saves,
    )


def find_recompiled(analysis: Analysis) -> Iterator[Finding]:
    """Report functions that XLA compiles again in every step."""
    count = len(analysis.recording.steps)
    for op, compilations in analysis.recording.compilations.items():
        if compilations < max(count, 2):
            continue
        yield Finding(
            id="compiled-anew",
            severity=Severity.HIGH,
            title=f"XLA compiled {op} {compilations} times in {count} steps",
            detail=(
                "A value that changes in every step is part of the compiled code, so each step "
                "compiles again, as slowly as the first, and the old values stay in the host's "
                "memory. Turn XLA off for this step (jit_compile=False, --no-jit), or use another "
                "optimizer: a frequent cause is an optimizer that divides an Embedding's sparse "
                "gradient and adds the result to a slot (Adadelta, RMSprop with momentum). Adam "
                "does not."
            ),
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
    largest = int(row["requested_bytes"])
    limit_mib = largest // 2 >> 20
    advice = ""
    if limit_mib and analysis.recording.device.kind == "gpu":
        advice = (
            " cuDNN's fastest algorithm may need more memory than a slower one. Start "
            f"with TF_CUDNN_WORKSPACE_LIMIT_IN_MB={limit_mib} (by default 4096, and "
            "8192 in newer releases) to exclude it."
        )

    yield Finding(
        id="workspace",
        severity=analysis.rate(saves),
        title=f"Workspaces of convolutions take {format_bytes(total)} "
        f"({total / peak:.0%} of the peak)",
        detail=f"The largest is {format_bytes(largest)} in {row['op']}.{advice}",
        saves_bytes=saves,
    )

"""Findings about how the step is set up: optimizer, inter-op threads, XLA compilation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from analyzer.explain.analysis import LOW, Analysis, severity_of
from analyzer.model.choice import Category
from analyzer.model.recording.records import Finding, Kind, Severity
from analyzer.model.units import format_bytes

_STATE_RATIO: Final = 0.2
"""Share of the peak from which on optimizer state is reported."""

THREADS_RATIO: Final = 0.03
"""Share of the peak that one inter-op thread has to save."""

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
    change = (
        "An optimizer with one slot per parameter (SGD with momentum, Lion, Adagrad) saves "
        f"{format_bytes(one_slot)}; plain SGD needs no state"
        if saves == one_slot
        else "Plain SGD without momentum needs no state"
    )
    factor = f"It is {state / parameters:.1f} times the parameters. " if parameters else ""
    yield Finding(
        id="optimizer-state",
        severity=severity_of(saves, peak),
        title=f"{optimizer}'s state takes {format_bytes(state)} ({state / peak:.0%} of the peak)",
        detail=f"{factor}A smaller batch does not reduce it. {change}. Training fewer parameters "
        "(freezing, LoRA) reduces it in proportion.",
        saves_bytes=saves,
        evidence=(
            {"what": "optimizer state", "requested_bytes": state},
            {"what": "parameters", "requested_bytes": parameters},
        ),
    )


def find_threads(analysis: Analysis) -> Iterator[Finding]:
    """Report the saving of a predicted step if its ops run one after the other."""
    uncertainty = analysis.recording.uncertainty
    schedules = () if uncertainty is None else uncertainty.schedules
    one = next((each for each in schedules if each.inter_op_threads == 1), None)
    if analysis.recording.kind is not Kind.ESTIMATE or one is None or len(schedules) < 2:
        return
    shown = schedules[0]
    saves = shown.requested_bytes - one.requested_bytes
    peak = analysis.peak.requested_bytes
    if saves < THREADS_RATIO * peak:
        return
    yield Finding(
        id="ops-side-by-side",
        severity=severity_of(saves, peak),
        title=f"Parallel ops on {shown.inter_op_threads} inter-op threads add {format_bytes(saves)}",
        detail="Their results and temporaries are alive together. One after the other, the ops "
        f"are predicted to peak at {format_bytes(one.requested_bytes)}: call "
        "tf.config.threading.set_inter_op_parallelism_threads(1) before the first op. Each op "
        "still uses all cores, so networks of large ops lose little speed; many small independent "
        "ops lose more. Try it with --inter-op-threads 1.",
        saves_bytes=saves,
        evidence=tuple(
            {
                "what": f"{each.inter_op_threads} inter-op threads",
                "requested_bytes": each.requested_bytes,
                "low_bytes": each.requested_low_bytes,
                "high_bytes": each.requested_high_bytes,
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
        sources = []
        if one.variables:
            sources.append(f"{len(one.variables)} variables that the step updates")
        if one.inputs:
            sources.append(f"{len(one.inputs)} of its inputs")
        shown = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
        where = "memory" if kept else "the host's memory"
        yield Finding(
            id="compiled-anew",
            severity=Severity.HIGH,
            title=title,
            detail=f"{one.because} needs a constant at compile time, and TensorFlow derives it from "
            f"{' and '.join(sources)} ({shown}). Their values become part of the compiled code. They "
            "change in every step, so everything is recompiled, as slowly as the first time, and the "
            f"old values stay in {where}. Turn XLA off for this step (jit_compile=False, --no-jit), or "
            "use another optimizer: a frequent cause is an optimizer that divides an Embedding's "
            "sparse gradient and adds the result to a slot (Adadelta, RMSprop with momentum). Adam "
            "does not.",
            saves_bytes=kept or None,
            evidence=tuple({"what": "compiled in", "name": name} for name in names),
        )

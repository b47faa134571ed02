"""Steps that XLA compiles again each time."""

from __future__ import annotations

from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.model.recording.records import Finding, RecompiledFunction, Severity
from analyzer.model.units import format_bytes

_NAMED: Final = 3  # variables told by name


def find_compiled_anew(analysis: Analysis) -> list[Finding]:
    """Report functions that are compiled again in every step, and what stays of each compilation."""
    recording = analysis.recording
    found = []
    for one in recording.recompiled_functions:
        measured = recording.kind.ran
        if measured and one.compilations <= 1:
            continue
        # On a card the old values are copied to the host, and do not count against its memory.
        kept = one.variable_bytes if recording.device.kind == "cpu" else 0
        title = f"XLA compiles {one.op} again in every step"
        if measured:
            title = (
                f"XLA compiled {one.op} {one.compilations} times in {len(recording.steps)} steps"
            )
        if kept:
            title += f" and keeps {format_bytes(kept)} each time"
        found.append(
            Finding(
                id="compiled-anew",
                severity=Severity.HIGH,
                title=title,
                detail=_detail(one, kept=bool(kept)),
                saves_bytes=kept or None,
                evidence=tuple({"what": "compiled in", "name": name} for name in _names(one)),
            )
        )
    return found


def _names(one: RecompiledFunction) -> tuple[str, ...]:
    return (*one.variables, *one.inputs)


def _detail(one: RecompiledFunction, *, kept: bool) -> str:
    kinds = []
    if one.variables:
        kinds.append(f"{len(one.variables)} variables that the step updates")
    if one.inputs:
        kinds.append(f"{len(one.inputs)} of its inputs")
    names = ", ".join(_names(one)[:_NAMED])
    more = ", …" if len(_names(one)) > _NAMED else ""
    text = (
        f"{one.because} has to know a value when it is compiled, and TensorFlow takes that value to "
        f"come from {' and '.join(kinds)} ({names}{more}). So their values are compiled in: when they "
        "change, as they do in every step, all is compiled again, which takes as long as the first time"
    )
    text += (
        f", and the old values stay for good ({format_bytes(one.variable_bytes)} of variables). "
        if kept
        else "; the host keeps the old values for good. "
    )
    return text + (
        "Without XLA (jit_compile=False, --no-jit) it does not happen. A frequent cause is an optimizer "
        "that divides an Embedding's sparse gradient and adds the result to a slot: Adadelta, RMSprop "
        "with momentum; Adam does without."
    )

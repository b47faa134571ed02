"""Memory that does not depend on the batch: parameters, optimizer state, gradients."""

from __future__ import annotations

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.severity import LOW, severity_of
from analyzer.model.contract.categories import Category
from analyzer.model.recording.records import Finding
from analyzer.model.units import format_bytes

_WORTH_SAYING = 0.2  # share of the peak


def find_state(analysis: Analysis) -> list[Finding]:
    """Report optimizer state that is a large share of the peak, and what would shrink it."""
    categories = analysis.categories
    peak = analysis.peak.requested_bytes
    state = categories[Category.OPTIMIZER_STATE.value]
    parameters = categories[Category.PARAMETER.value]
    if not peak or state < _WORTH_SAYING * peak:
        return []
    optimizer = analysis.recording.step_config.optimizer or "The optimizer"
    one_slot = max(state - parameters, 0)
    saves = one_slot if one_slot >= LOW * peak else state
    less = (
        "An optimizer with one slot a parameter (SGD with momentum, Lion, Adagrad) would hold "
        f"{format_bytes(one_slot)} less, plain SGD none of it"
        if saves == one_slot
        else "Plain SGD without momentum would hold none of it"
    )
    times = f"is {state / parameters:.1f} times the parameters and " if parameters else ""
    return [
        Finding(
            id="optimizer-state",
            severity=severity_of(saves, peak),
            title=f"{optimizer}'s state is {format_bytes(state)} ({state / peak:.0%} of the peak)",
            detail=f"It {times}does not shrink with the batch. {less}; training fewer parameters "
            "(freezing, LoRA) shrinks it in proportion.",
            saves_bytes=saves,
            evidence=(
                {"what": "optimizer state", "requested_bytes": state},
                {"what": "parameters", "requested_bytes": parameters},
            ),
        )
    ]

"""Memory that does not depend on the batch: parameters, optimizer state, gradients."""

from __future__ import annotations

from analyzer.findings.analysis import Analysis
from analyzer.model import Category, Finding, Severity
from analyzer.units import format_bytes

_WORTH_SAYING = 0.2


def find_state(analysis: Analysis) -> list[Finding]:
    """Report optimizer state that is a large share of the peak, and what would shrink it."""
    categories = analysis.categories
    peak = analysis.peak.requested_bytes
    state = categories[Category.OPTIMIZER_STATE.value]
    parameters = categories[Category.PARAMETER.value]
    if not peak or state < _WORTH_SAYING * peak:
        return []
    ratio = state / parameters if parameters else 0.0
    optimizer = analysis.recording.step_config.optimizer or "The optimizer"
    return [
        Finding(
            id="optimizer-state",
            severity=Severity.MEDIUM,
            title=f"{optimizer}'s state is {format_bytes(state)} ({state / peak:.0%} of the peak)",
            detail=f"It is {ratio:.1f} times the parameters and does not shrink with the batch. An "
            "optimizer with one slot a parameter (SGD with momentum, Lion, Adagrad) would hold "
            f"{format_bytes(max(state - parameters, 0))} less, plain SGD none of it; training "
            "fewer parameters (freezing, LoRA) shrinks it in proportion.",
            saves_bytes=max(state - parameters, 0) or None,
            evidence=(
                {"what": "optimizer state", "requested_bytes": state},
                {"what": "parameters", "requested_bytes": parameters},
            ),
        )
    ]

"""What running ops side by side costs."""

from __future__ import annotations

from typing import Final

from analyzer.explain.analysis import Analysis
from analyzer.explain.questions.severity import severity_of
from analyzer.model.recording.records import Finding, Kind
from analyzer.model.units import format_bytes

WORTH_SAYING: Final = 0.03
"""Share of the peak from which fewer threads are worth a finding."""


def find_threads(analysis: Analysis) -> list[Finding]:
    """Report what a predicted step would need less if its ops ran one after the other."""
    uncertainty = analysis.recording.uncertainty
    schedules = () if uncertainty is None else uncertainty.schedules
    one = next((each for each in schedules if each.inter_op_threads == 1), None)
    if analysis.recording.kind is not Kind.ESTIMATE or one is None or len(schedules) < 2:
        return []
    shown = schedules[0]
    saves = shown.requested_bytes - one.requested_bytes
    peak = analysis.peak.requested_bytes
    if saves < WORTH_SAYING * peak:
        return []
    count = shown.inter_op_threads
    return [
        Finding(
            id="ops-side-by-side",
            severity=severity_of(saves, peak),
            title=f"Ops that run side by side on {count} inter-op threads add {format_bytes(saves)}",
            detail="Their results and temporaries are alive at the same time. One after the other they "
            f"are predicted to peak at {format_bytes(one.requested_bytes)}: call "
            "tf.config.threading.set_inter_op_parallelism_threads(1) before TensorFlow runs its first "
            "op. Each op still uses all cores, so that networks of large ops lose little speed; many "
            "small ops that do not wait for each other lose more. Try it: --inter-op-threads 1.",
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
    ]

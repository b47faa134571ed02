"""Whether a trace is complete, and if not, the reasons and their effect on the figures."""

from collections.abc import Iterator

from msgspec import structs

from analyzer.explain.analysis import Analysis
from analyzer.model.contract.report_file import TrustFigures
from analyzer.model.errors import AnalyzerError
from analyzer.model.recording.records import DamageReason, Recording, find_own_peak
from analyzer.model.units import format_bytes

_SHOWN = 3  # reasons shown in words; the JSON has all of them


def trust_figures(analysis: Analysis) -> TrustFigures | None:
    """Return whether a trace is complete; None for a prediction."""
    check = analysis.recording.integrity
    if check is None:
        return None

    return structs.replace(
        check,
        replay=analysis.replay_check,
        says=tuple(_notices(analysis, check)),
    )


def highest_counter(recording: Recording) -> int:
    """Return the highest peak that TensorFlow's counter has in the events; 0 without events."""
    own = recording.events["allocator"] == recording.allocator
    return int(recording.events.loc[own, "peak_in_use_bytes"].max()) if own.any() else 0


def find_counter_peak(recording: Recording) -> int | None:
    """Return TensorFlow's peak of allocated bytes since the start of the process; None if unknown."""
    if not recording.kind.ran:
        return None

    return max(highest_counter(recording), find_own_peak(recording) or 0) or None


def _counter_peak(analysis: Analysis) -> int | None:
    """Return the highest bytes in use that TensorFlow wrote in the steady step; None without any."""
    events = analysis.recording.events[max(analysis.first, 0) : analysis.last + 1]
    is_own = events["allocator"] == analysis.recording.allocator
    own = events[is_own & (events["kind"] != 0)]

    return None if own.empty else int(own["in_use_bytes"].max())


def _notices(analysis: Analysis, check: TrustFigures) -> Iterator[str]:
    own = analysis.recording.allocator
    shown = [one for one in check.damages if one.allocator in ("", own)]
    if check.events_disagreeing:
        most = format_bytes(check.largest_difference_bytes)
        yield (
            "Incomplete trace: events are missing or altered. After "
            f"{check.events_disagreeing:,} of {check.events:,} memory events, their sum "
            f"differs from TensorFlow's bytes in use, by up to {most}."
        )

        counter = _counter_peak(analysis)
        if counter not in (None, analysis.peak.allocated_bytes):
            yield (
                f"By TensorFlow's counter the allocated peak is {format_bytes(counter)}"
                ", which is more likely."
            )

        shown = [one for one in shown if one.id != DamageReason.LOST_EVENTS]

    for damage in shown[:_SHOWN]:
        yield f"Incomplete trace: {damage.message}"

    replay = analysis.replay_check
    different = replay.events - replay.equal if replay is not None else 0
    if replay is not None and different and not check.events_disagreeing:
        yield (
            f"The replay differs from the trace in {different:,} of {replay.events:,} "
            "events. Either the trace is incomplete, or the allocator had settings that "
            "are not simulated. So the pool is unknown, and replays under other settings "
            "are only a guess."
        )


# Of the counter: it is read a moment after the last event.
_TOLERANCE = 1.01


def check_peak(analysis: Analysis) -> None:
    """Raise AnalyzerError if the peak of a whole trace is above the one that TensorFlow counted.

    The counter of a TPU is of its heap, without the stack that XLA reserves.
    """
    recording = analysis.recording
    if recording.device.kind == "tpu":
        return

    counted_bytes = find_counter_peak(recording)
    found_bytes = analysis.peak_ever.allocated_bytes
    is_damaged = recording.integrity is not None and recording.integrity.damages

    if counted_bytes is None or is_damaged:
        return

    if found_bytes > _TOLERANCE * counted_bytes:
        raise AnalyzerError(
            f"The peak of {recording.allocator}, {format_bytes(found_bytes)}, contradicts TensorFlow's "
            f"own, {format_bytes(counted_bytes)}."
        )

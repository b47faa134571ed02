"""The peaks of a measured step in other orders of its ops."""

from analyzer.model.ranges import Range
from analyzer.simulate.predict.predicted_device import target_of
from analyzer.simulate.predict.predicted_recording import owners_by_number
from analyzer.simulate.predict.sampling import limit_schedules, predict
from analyzer.tracing.parse.run_folder import RunNote

_MOST_RUNS, _FEWEST, _MOST = 60_000, 9, 41  # op runs in all schedules, and numbers of schedules


def simulate_other_orders(note: RunNote, measured: Range) -> Range | None:
    """Return requested peaks in other orders, including the ``measured`` ones of the steps.

    None if the order is fixed (one inter-op thread, a card, compiled functions), or if the executed
    graph is unknown. Results of unknown size count as 0.
    """
    is_fixed = note.device.kind != "cpu" or note.threads.inter_op < 2 or note.compiled
    if is_fixed or note.graph_kind != "executed" or not note.ops:
        return None
    device = target_of(note).device
    prediction = predict(
        note.ops,
        list(owners_by_number(note, device).values()),
        threads=note.threads.intra_op,
        inter_op=(note.threads.inter_op,),
        device=device,
        count=limit_schedules(_MOST_RUNS, len(note.ops), _FEWEST, _MOST),
    )
    return prediction.range.including(measured.low, measured.high)

"""The stated range of a prediction, and notes on ops whose memory is unknown."""

from collections.abc import Iterator

from analyzer.model.contract.report_file import StatedRange
from analyzer.model.recording.records import WORKSPACE
from analyzer.model.tables import read_table
from analyzer.model.units import Range
from analyzer.simulate.allocator.limits import FLOOR_BYTES, LIMIT_MARGIN
from analyzer.simulate.predict.prediction import Prediction

SENTENCES = read_table("simulate/predict/range_sentences.toml", dict[str, str])

# Share of the peak added on both sides for bytes that no schedule shows: constants that the runtime
# folds or shares, small buffers in Python, kernel scratch of a few kilobytes.
MARGIN = 0.002

# Share of the peak added on both sides on a CPU, whose orders of ops are more than those played.
ORDER_MARGIN = 0.02

# Share of the peak added for ops that overlap on several threads of a CPU; one queue plays them one
# by one (benchmarks/results/ablation.md).
THREADS_MARGIN = 0.05

# Share of the allocated peak added on both sides: initial values, whose temporaries decide the first
# chunks, are not played (benchmarks/results/ablation.md).
CHUNKS_MARGIN = 0.06


# Guards around the workspace on which cuDNN's algorithms are tried in the first step, to detect
# writes outside of it (twice ``kDefaultRedzoneSize`` in ``redzone_allocator.h``).
TRIAL_BYTES = 16 << 20


# Share of the peak that other tensors of a process may add: 0.1 to 1.3 % in four public programs
# before their steps (benchmarks/results/real-cards.md).
HELD_SHARE = 0.015


def state_range(prediction: Prediction, card_limit_bytes: int | None) -> StatedRange:
    """Return the range of the peak; ``card_limit_bytes`` is None for a CPU."""
    requested = prediction.requested
    below, above = _find_margins(prediction)
    limits = None

    if prediction.limits is not None:
        margin = int(LIMIT_MARGIN * prediction.limits.high)
        has_trials = any(any(one.workspaces_bytes) for one in prediction.prepared.plans)
        margin += above + TRIAL_BYTES * has_trials
        limits = prediction.limits.widened(below, margin)

    # Other outcomes of decisions are not replayed: their distance to the schedules is added.
    played = Range.spanning(one.peak_bytes for one in prediction.schedules)
    chunks = Range.spanning(prediction.allocated_bytes)
    chunk_margin = int(CHUNKS_MARGIN * chunks.high)

    low_margin = played.low - requested.low + below + chunk_margin
    high_margin = requested.high - played.high + above + chunk_margin
    chunks = chunks.widened(low_margin, high_margin)

    requested = requested.widened(below, above)
    workspace_bytes = None

    if card_limit_bytes is not None:
        less_bytes, more_bytes = _find_workspace_spread(prediction)
        held_bytes = int(HELD_SHARE * prediction.middle.peak_bytes)
        workspace_bytes = more_bytes + held_bytes
        requested = requested.widened(less_bytes, workspace_bytes)
        chunks = chunks.widened(less_bytes, workspace_bytes)

    return StatedRange(
        limit_low_bytes=None if limits is None else limits.low,
        limit_high_bytes=None if limits is None else limits.high,
        low_bytes=requested.low,
        high_bytes=requested.high,
        allocated_low_bytes=chunks.low,
        allocated_high_bytes=chunks.high,
        because=(),
        unsized=len(find_unsized(prediction)),
        workspace_bytes=workspace_bytes,
    )


def _find_margins(prediction: Prediction) -> tuple[int, int]:
    """Return bytes below and above the peaks that no schedule shows."""
    prepared = prediction.prepared
    is_ordered = prepared.device.is_cheap
    share = MARGIN if is_ordered else ORDER_MARGIN
    margin = max(int(share * prediction.middle.peak_bytes), FLOOR_BYTES)
    above = margin

    if prepared.threads > 1 and not is_ordered:
        above += int(THREADS_MARGIN * prediction.requested.high)

    return margin, above


def describe_notes(prediction: Prediction) -> Iterator[str]:
    """Yield sentences about ops whose memory is unknown."""
    pairs = zip(prediction.prepared.ops, prediction.prepared.plans, strict=True)
    kinds = {op.type for op, plan in pairs if not plan.modelled}
    if kinds:
        yield SENTENCES["no_rule"].format(", ".join(sorted(kinds)[:5]))

    unsized = find_unsized(prediction)
    if unsized:
        yield SENTENCES["unsized"].format(len(unsized), ", ".join(unsized[:3]))
        if any(name.startswith("IteratorGetNext") for name in unsized):
            yield SENTENCES["iterator"]


# Op types whose results are a few axes; their unknown sizes do not matter.
_TINY_RESULTS = frozenset({"BroadcastGradientArgs"})


def find_unsized(prediction: Prediction) -> list[str]:
    """Return the tensors of ops that ran whose size neither graph nor kernel rule defines."""
    plans = prediction.prepared.plans
    ops = prediction.prepared.ops
    unsized: list[str] = []

    for node in dict.fromkeys(prediction.middle.nodes):
        op = ops[node]
        outputs = plans[node].outputs

        if op.type in _TINY_RESULTS:
            continue

        for index, spec in enumerate(op.outputs):
            is_number = spec.dtype not in ("resource", "variant", "string", "")
            is_known = index < len(outputs) and outputs[index].is_known
            if spec.size_bytes is None and is_number and not is_known:
                unsized.append(f"{op.name}:{index}")

    return unsized


def _find_workspace_spread(prediction: Prediction) -> tuple[int, int]:
    """Return by how many bytes other likely algorithms of cuDNN lower and raise the peak at most."""
    schedule = prediction.middle
    first = schedule.steps[-1].first
    peak = schedule.peak_instant
    less_bytes = more_bytes = 0

    for buffer in schedule.buffers:
        if buffer.node < 0 or buffer.born < first:
            continue

        plan = prediction.prepared.plans[buffer.node]
        expected_bytes, least_bytes, most_bytes = plan.workspaces_bytes
        live_bytes = int(schedule.live_bytes[buffer.born + 1])

        if buffer.region == WORKSPACE:
            live_bytes -= expected_bytes
            if buffer.born <= peak and (buffer.dies is None or buffer.dies > peak):
                less_bytes = expected_bytes - least_bytes

        if most_bytes:
            higher_bytes = live_bytes + most_bytes - schedule.peak_bytes
            more_bytes = max(more_bytes, higher_bytes)

    return less_bytes, more_bytes

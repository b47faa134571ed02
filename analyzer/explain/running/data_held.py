"""Data in memory: constants, tensors alive in all steps, tf.data stages; the program's figures."""

from collections import Counter
from collections.abc import Iterator

from msgspec import structs

from analyzer.explain.analysis import Analysis, of_category, sum_requested
from analyzer.explain.questions.peak_tensors import find_batch
from analyzer.explain.running.leaks import find_filling
from analyzer.explain.running.slope import measure_growth
from analyzer.model.contract.fields import tensor_bytes
from analyzer.model.contract.report_file import (
    MOST_READINGS,
    ProgramFigures,
    TrendFigures,
)
from analyzer.model.contract.run_note import DataStage, LargeConstant, WatchNote
from analyzer.model.recording.records import Finding, Recording, Severity, find_own_peak
from analyzer.model.units import format_bytes

_LEAST_BYTES = 8 << 20
_LEAST_RATIO = 0.1  # data is reported above both: bytes, and a share of the peak
_LEAST_HOST = 4  # data on the host is reported above this multiple of the limit

# batches in the first axis from which on a tensor seems to be a data set
_MANY = 8
_ROWS_OF_DATA = 1000  # the same limit in rows, if the batch size is unknown
_ARRAYS = 4  # in one holder, such as a data set of inputs and targets

_OF_THE_WATCH = (
    "step",
    "where",
    "steps",
    "warmup",
    "ended",
    "whole_run",
    "process_peak_bytes",
)


def find_data(
    analysis: Analysis,
    watch: WatchNote,
    growth: TrendFigures,
) -> Iterator[Finding]:
    """Report data sets that are constants or fully in memory, and stages with large buffers."""
    least = max(_LEAST_BYTES, _LEAST_RATIO * analysis.peak.allocated_bytes)
    batch = find_batch(analysis)
    fewest = _MANY * batch if batch else _ROWS_OF_DATA
    on_card = analysis.recording.device.kind == "gpu"
    sets = [
        one
        for one in watch.constants
        if one.kind == "held"
        and one.copies <= _ARRAYS
        and len(one.shape or ()) > 1
        and (one.shape or (0,))[0] >= fewest
        # not beside the device, or in the memory of a NumPy array
        and len(
            analysis.at_peak(analysis.of_size(tensor_bytes(one.dtype, one.shape) or 0))
        )
    ]

    for one in dict.fromkeys(watch.constants):
        if one.kind == "graph" and one.size_bytes >= least:
            yield _report_constant(analysis, one)

    if sum(one.size_bytes for one in sets) >= least:
        yield _report_held(sets, on_card=on_card)

    filled = find_filling_stage(analysis.recording, watch, growth)

    for stage in watch.stages:
        is_filling = stage is filled
        if is_filling or _stage_bytes(stage) >= _LEAST_HOST * least:
            yield _report_stage(analysis, stage, is_filling=is_filling)


def find_filling_stage(
    recording: Recording,
    watch: WatchNote,
    growth: TrendFigures,
) -> DataStage | None:
    """Return the stage whose filling may explain all growth; None if none is large enough.

    On the CPU, stages allocate in the same allocator as the steps.
    """
    if growth.trend != "grows" or recording.device.kind == "gpu":
        return None

    grown_bytes = growth.per_step_bytes * (growth.last_step - growth.first_step)
    largest = max(watch.stages, key=_stage_bytes, default=None)

    return None if largest is None or _stage_bytes(largest) < grown_bytes else largest


def _report_constant(analysis: Analysis, one: LargeConstant) -> Finding:
    copies = f"{one.copies} graphs" if one.copies > 1 else "a graph"
    alive = analysis.at_peak(analysis.of_size(one.size_bytes))
    on_device = sum_requested(alive)

    return Finding(
        id="data-constant",
        severity=Severity.HIGH,
        title=f"{format_bytes(one.size_bytes)} of data are a constant of {copies} "
        f"({one.where})",
        detail=f"The array ({_array_words(one)}) was used while a tf.function was "
        "traced. TensorFlow copied its values into the graph, and again into the "
        "executor's memory on the device, for the life of the function. Feed batches "
        "instead: create a tf.data.Dataset (from_generator, from_tensor_slices) "
        "outside the function, or pass a tensor as an argument.",
        saves_bytes=on_device or one.size_bytes * one.copies,
        saves_kind="allocated",
    )


def _report_held(sets: list[LargeConstant], *, on_card: bool) -> Finding:
    off_card = "; tf.device('CPU') keeps it off the card" if on_card else ""
    size_bytes = sum(one.size_bytes for one in sets)
    counts = Counter(sets)
    first = max(counts, key=lambda one: one.size_bytes * counts[one])
    others = f" and {len(counts) - 1} more" if len(counts) > 1 else ""
    count = counts[first]
    times = f" {count} times" if count > 1 else ""  # as inputs and as targets

    return Finding(
        id="data-held",
        severity=Severity.HIGH if on_card else Severity.MEDIUM,
        title=f"{format_bytes(size_bytes)} of data stay in TensorFlow's memory, the whole "
        f"set{times}: {first.name}{others} ({first.where})",
        detail=f"The tensors ({_array_words(first)}) are alive in all traced steps. Keep "
        "the array in NumPy or memory-mapped and load batches with "
        f"tf.data{off_card}.",
        saves_bytes=size_bytes,
    )


def _array_words(one: LargeConstant) -> str:
    return f"{one.dtype}, shape {list(one.shape or ()) or 'unknown'}"


def _stage_bytes(one: DataStage) -> int:
    return (one.elements or 0) * (one.element_bytes or 0)


_STAGE_ADVICE = {
    "cache": "cache(filename) stores it on disk.",
    "queue": "Give the PyDataset fewer workers or a smaller max_queue_size.",
    "prefetch": "Prefetch one or two elements, or use tf.data.AUTOTUNE.",
    "shuffle": (
        "Shuffle before batching and decoding (indices or file names), or use a "
        "smaller buffer."
    ),
}


def _report_stage(analysis: Analysis, one: DataStage, *, is_filling: bool) -> Finding:
    """Report a stage; ``is_filling`` is whether memory grows because of it.

    On the CPU its elements are inputs of the steps' allocator, alive at the peak.
    """
    size_bytes = _stage_bytes(one)
    verb = "is filling and holds" if is_filling else "holds"
    element = format_bytes(one.element_bytes or 0)
    stage = f"The tf.data stage {one.kind}"
    saves_bytes: int | None = None
    severity = Severity.MEDIUM if is_filling else Severity.LOW

    if one.kind == "queue":
        stage = "The queue of the PyDataset"

    # a queue of a PyDataset holds NumPy's memory
    if analysis.recording.device.kind == "cpu" and one.kind != "queue":
        alive = analysis.alive
        one_bytes = one.element_bytes or 0
        is_element = alive["requested_bytes"].between(one_bytes // 2, one_bytes)
        elements = of_category(alive[is_element], "input")
        held_bytes = sum_requested(elements)
        is_full = one.kind == "cache"  # in the end
        saves_bytes = size_bytes if is_full else min(size_bytes, held_bytes) - one_bytes
        severity = analysis.rate(saves_bytes)

    return Finding(
        id="data-stage",
        severity=severity,
        title=f"{stage} {verb} up to {format_bytes(size_bytes)} on"
        f" the host ({one.where})",
        detail=f"{one.elements} elements of {element}. {_STAGE_ADVICE[one.kind]}",
        saves_bytes=saves_bytes,
    )


def program_figures(recording: Recording, watch: WatchNote) -> ProgramFigures:
    """Return the report's figures on a program's steps."""
    device, host = measure_growth(recording, watch)
    readings = watch.readings

    if find_filling(watch, device) or find_filling_stage(recording, watch, device):
        device = structs.replace(device, trend="fills")
    elif device.trend == "grows" and watch.step_objects > 1 and not watch.models:
        device = structs.replace(device, trend="cannot tell")

    stride = -(-len(readings) // (MOST_READINGS - 1)) or 1

    return ProgramFigures(
        **{name: getattr(watch, name) for name in _OF_THE_WATCH},
        device=device,
        host=host,
        readings=(
            *readings[:-1:stride],
            *readings[-1:],
        ),  # evenly spaced, with the last one
        own_peak_bytes=find_own_peak(recording),
    )

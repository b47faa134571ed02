"""From a trace file and the capture's note to a ``Recording``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from msgspec import structs

from analyzer.cards.catalogue import all_gpus, find_gpu, memory_limit
from analyzer.model.contract.fields import Category, tensor_bytes
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.report_file import TrustFigures
from analyzer.model.contract.run_note import (
    STEP_WITH_ALL,
    Op,
    StepConfig,
    TargetNote,
)
from analyzer.model.errors import TraceError
from analyzer.model.graph.buffer_sharing import Sharing
from analyzer.model.graph.graph_index import GraphIndex, remove_rewrite
from analyzer.model.recording.records import (
    HOST_ALLOCATORS,
    Device,
    Kind,
    Recording,
    Step,
    card_number,
    choose_allocator,
    find_limit,
    find_peaks,
    find_steps_of_births,
    is_tpu,
)
from analyzer.model.units import GRANULE_BYTES, format_bytes, list_first
from analyzer.tracing.derive.state_buffers import find_parts, take_parts
from analyzer.tracing.derive.trace_graph import derive_graph
from analyzer.tracing.measure.buffers_and_steps import (
    add_earlier_buffers,
    check_trace,
    find_run_spans,
    find_steps,
    pair_frees,
)
from analyzer.tracing.measure.trace_attribution import (
    AddressIndex,
    attribute,
    find_instants,
    find_marks,
    label_workspaces,
)
from analyzer.tracing.parse.buffer_plan import Plans
from analyzer.tracing.parse.event_columns import STACK, WATCHED_STEP
from analyzer.tracing.parse.run_folder import (
    GRAPH_FILE,
    NO_NOTE,
    RUN_FILE,
    RunNote,
    find_run_file,
    find_traces,
    index_note_graph,
    list_runs,
    read_run,
)
from analyzer.tracing.parse.xplane import RawTrace, Span, Spans, Statistic, read_trace
from analyzer.tracing.xla.compiled_modules import (
    describe_modules,
    divide_temporaries,
    find_plans,
    name_call_requests,
    name_module_buffers,
    read_modules,
    warn_about_modules,
)

_TEXTS = read_table("tracing/measure/trace_texts.toml", dict[str, str])
_MOST_NAMED = 3  # ops in a warning

# A program with fewer may return them all.
_LEAST_ACTIVATIONS = 3


def open_measured(
    path: Path,
    *,
    host: str = "",
    allocator: str = "",
) -> Recording:
    """Read the trace at ``path`` (a file, a run folder or a logdir).

    ``host`` is a prefix of the file's name, an empty ``allocator`` the device's own. TraceError if
    there is no readable trace, host or allocator.
    """
    files = find_traces(path)
    chosen = [file for file in files if file.name.startswith(host)]
    names = ", ".join(file.name.split(".xplane")[0] for file in chosen or files)

    if not chosen:
        raise TraceError(f"The run has no host {host!r}.", f"It has {names}.")

    trace = chosen[0]
    warnings = []

    if len(chosen) > 1:
        warnings.append(f"The run has several hosts ({names}); this is {trace.name}.")

    others = [run.name for run in list_runs(path)[:-1]]
    if others:
        warnings.append(
            f"The logdir has several runs; this is the newest, {trace.parent.name}. Add --run "
            f"NAME for another one: {', '.join(others[-_MOST_NAMED:])}."
        )

    raw = read_trace(trace)
    note_path = find_run_file(trace)
    note = None

    if note_path is not None:
        note = read_run(note_path)
    elif (graph := find_run_file(trace, GRAPH_FILE)) is not None:
        warnings.append(_TEXTS["no_note"].format(graph.parent, RUN_FILE))

    return measure(
        raw,
        note,
        trace,
        named=path,
        allocator=allocator,
        warnings=warnings,
    )


def measure(
    raw: RawTrace,
    note: RunNote | None,
    path: Path,
    *,
    named: Path | None = None,
    allocator: str = "",
    warnings: Sequence[str] = (),
) -> Recording:
    """Pair, cut into steps, check and attribute the events of one trace.

    ``note`` is None for a trace of another program; see ``open_measured`` for the other arguments.
    """
    note = note or NO_NOTE
    events = name_functions(raw.events, note.ops, note.functions)
    raw = replace(raw, events=events)

    main = choose_allocator(events, allocator)
    raw, table, steps, integrity = _pair_and_cut(raw, note, main)
    structure = index_note_graph(note)

    is_lost = not structure.ops and not note.step.eager
    if (is_lost or not note.is_captured) and not is_tpu(main):
        table, structure = derive_graph(table, raw, steps)

    plans = find_plans(note, structure) if note.is_captured else read_modules(raw)
    table, sharing = _label_buffers(table, raw, note, structure, steps, plans, main)

    shown, events_shown, steps_shown = divide_temporaries(
        table,
        events,
        steps,
        plans,
        structure,
        allocator=main,
        infer=note.step.infers,
    )

    if plans:
        in_steps = shown.loc[shown["step"].notna(), "tensor"]
        sharing = Sharing(structure, set(in_steps) - {""})

    found = _find_warnings(steps, note, main)

    if not note.is_captured:
        found += warn_about_modules(raw, plans)
        if structure.ops:
            found += _warn_about_cut(shown, main)

    return Recording(
        kind=Kind.SIMULATED_CARD if note.simulated_card else Kind.TRACE,
        target=_target(note, named or path, path),
        device=_device(events, main, raw, note),
        step_config=_describe_step(note, raw, plans, structure),
        events=events_shown,
        allocations=shown,
        allocator=main,
        steps=steps_shown,
        structure=structure,
        warnings=(*warnings, *found),
        versions=dict(note.versions),
        error=note.error,
        compilations={one.ops[0]: one.compilations for one in note.xla},
        integrity=integrity,
        notes=tuple(_list_notes(events, main, note, structure)),
        simulated_run=note.simulated_card,
        repeats=note.repeats,
        has_unknown_values=bool(note.unknown_values),
        layer_lines=note.source_lines,
        watch=note.watch,
        sharing=sharing,
        op_runs=raw.op_runs,
    )


def name_functions(
    events: pd.DataFrame, ops: Iterable[Op], prefixes: Sequence[str]
) -> pd.DataFrame:
    """Return the events with the prefix of their function in the names of ops.

    A run is of the function that has the most of its ops, the step's if several have. A run of one op
    is an eager op's.
    """
    if not prefixes:
        return events

    names = [op.name for op in ops]
    owned = []

    for name in names:
        prefix = max(filter(name.startswith, prefixes), key=len, default="")
        owned.append((name.removeprefix(prefix), prefix))

    found = events.loc[events["run_id"] != 0, ["run_id", "op"]].drop_duplicates()
    found = found[found.duplicated("run_id", keep=False)]
    found = found.merge(pd.DataFrame(owned, columns=["op", "prefix"]))
    functions = found.groupby("run_id")["prefix"].agg(lambda rows: rows.mode()[0])

    plain = events["op"].astype(object)
    prefix = events["run_id"].map(functions).astype(object)

    # Grappler replaces an op, also by others below its name.
    before = events["op"].map(remove_rewrite).astype(object)
    above = before.map(lambda name: name.rpartition("/")[0])

    for known in (prefix + above, prefix + before, prefix + plain):
        plain = plain.mask(known.isin(names), known)

    return events.assign(op=plain.astype("category"))


def _pair_and_cut(
    raw: RawTrace,
    note: RunNote,
    main: str,
) -> tuple[RawTrace, pd.DataFrame, tuple[Step, ...], TrustFigures]:
    """Return the trace with its step marks, the buffers, the steps and a check of them.

    Frees end the buffers of allocations. Marks, or else runs of functions, cut the events into steps.
    """
    raw = replace(raw, step_markers=_find_step_marks(raw, note))
    events = raw.events
    spans = raw.step_markers or find_run_spans(raw, main)
    steps = find_steps(events, spans)

    table = pair_frees(events)
    table = add_earlier_buffers(events, table, *_find_earlier_buffers(table, raw, note))
    integrity = check_trace(raw, table, steps, note, main)

    table = table.assign(step=find_steps_of_births(table["born"].to_numpy(), steps))

    return replace(raw, step_markers=spans), table, steps, integrity


def _label_buffers(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote,
    structure: GraphIndex,
    steps: Sequence[Step],
    plans: Plans,
    main: str,
) -> tuple[pd.DataFrame, Sharing]:
    if note.is_captured:
        table = name_call_requests(table, raw, plans, structure)

    table, sharing = attribute(table, raw, note, structure, steps)
    table = label_workspaces(table)

    if note.is_captured:
        return table, sharing

    if structure.ops:
        own = table[table["allocator"] == main]
        table = take_parts(table, find_parts(own, structure), main)

    return name_module_buffers(table, raw, plans), sharing


def _describe_step(
    note: RunNote,
    raw: RawTrace,
    plans: Plans,
    structure: GraphIndex,
) -> StepConfig:
    """Return the settings in the note, else those that the modules and the derived graph show."""
    if note.is_captured:
        return note.step

    eager = sum("#" in name for name in structure.ops)

    return replace(describe_modules(raw, plans), eager=2 * eager > len(structure.ops))


def _describe_tpu(events: pd.DataFrame, allocator: str) -> str:
    """Return a note about the parts of a TPU's memory."""
    own = events[events["allocator"] == allocator]
    stack = own.loc[own["op"] == STACK, "requested_bytes"].max()

    limit_bytes = (own["in_use_bytes"] + own["available_bytes"]).max()
    sizes = (stack, own["peak_in_use_bytes"].max(), limit_bytes)
    known = [0 if pd.isna(size) else int(size) for size in sizes]
    reserved, heap, limit = map(format_bytes, known)

    return (
        f"{allocator}: by the runtime's counters the heap held at most {heap}, and XLA "
        f"reserved a stack of up to {reserved} for its programs, perhaps at another "
        f"time, of {limit} in all. A TPU has no pool of TensorFlow's allocator, so there "
        "is no replay and no need."
    )


def _list_notes(
    events: pd.DataFrame,
    main: str,
    note: RunNote,
    structure: GraphIndex,
) -> Iterator[str]:
    """Yield notes on a TPU, those of the capture or on a derived graph, and on other allocators."""
    if is_tpu(main):
        yield _describe_tpu(events, main)

    yield from note.notes

    if not note.is_captured and structure.evidence:
        yield (
            f"The graph of {len(structure.ops):,} ops is derived from op names, kernels and frees: "
            "the op before a tensor's free counts as its last user."
        )

    yield from _describe_allocators(events, main)


_SHOWN_RATIO = 0.01  # least peak of another allocator that is named, of the main one's


def _describe_allocators(events: pd.DataFrame, main: str) -> Iterator[str]:
    """Yield a note on the other allocators with a peak that matters; cards have lines of their own."""
    peaks = find_peaks(events)
    least_bytes = _SHOWN_RATIO * peaks.get(main, 0)
    others = [
        f"{name} {format_bytes(peak_bytes)}"
        for name, peak_bytes in peaks.items()
        if name != main and card_number(name) is None and peak_bytes >= least_bytes
    ]

    if others:
        yield f"Peaks of allocators beside {main}: {', '.join(others)}."


def _find_step_marks(raw: RawTrace, note: RunNote) -> Spans:
    """Return the step marks; in a watched program only the capture's, or one for its whole run."""
    if note.watch is None:
        return raw.step_markers

    if note.watch.whole_run:
        last_ps = int(raw.events["time_ps"].max())
        snapshots = find_marks(raw.markers, "snapshot")
        ends = [(span.start_ps, span.thread) for span in snapshots]
        end_ps, thread = max(ends, default=(last_ps, 0))

        whole = Span(
            name=WATCHED_STEP,
            start_ps=0,
            end_ps=end_ps,
            thread=thread,
            stats={},
        )

        return (whole,)

    own = tuple(mark for mark in raw.step_markers if mark.name == WATCHED_STEP)

    return own or raw.step_markers


def _find_earlier_buffers(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote,
) -> tuple[dict[int, int], dict[int, int]]:
    """Return address and bytes of buffers that exist at the first snapshot without an event.

    Returns:
        Variables; and the step's inputs, which may be from before the trace.
    """
    moments = find_instants(raw, "snapshot")
    if not moments or not note.snapshots:
        return {}, {}

    index = AddressIndex(table)

    def choose(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, int]:
        return {
            address: size
            for address, size in pairs
            if address is not None and size and index.at(address, moments[0]) is None
        }

    sizes = (variable.size_bytes for variable in note.variables)
    variables = choose(zip(note.snapshots[0], sizes, strict=False))
    given = choose(
        (one.address, tensor_bytes(one.dtype, one.shape)) for one in note.inputs
    )

    # An input may lie in NumPy's memory at any address; chunks begin at multiples of 256 bytes.
    places = set((raw.events["address"] % GRANULE_BYTES).tolist())
    inputs = {}

    for address, size in given.items():
        if address % GRANULE_BYTES in places and address not in variables:
            inputs[address] = size

    return variables, inputs


def _target(note: RunNote, named: Path, trace: Path) -> TargetNote:
    if note.target is not None:
        return structs.replace(note.target, trace=str(trace))

    return TargetNote(
        text=str(named),
        kind="trace",
        name=trace.name.split(".xplane")[0],
        trace=str(trace),
    )


def _device(
    events: pd.DataFrame,
    allocator: str,
    raw: RawTrace,
    note: RunNote,
) -> Device:
    is_host = allocator in HOST_ALLOCATORS
    limit_bytes = find_limit(events, allocator)
    simulated_card = note.simulated_card

    if simulated_card and simulated_card.is_unlimited:
        card_limit = memory_limit(find_gpu(simulated_card.cards[0])).bytes
        limit_bytes = simulated_card.memory_limit_bytes or card_limit
    elif simulated_card is not None and limit_bytes is not None:
        limit_bytes += simulated_card.spare_of(card_number(allocator))

    # The card that an allocator such as ``GPU_0_bfc`` belongs to.
    plane = f":{allocator.removeprefix('GPU_').partition('_')[0]}"
    cards = list(raw.cards)
    if len(cards) > 1:
        cards = [card for card in cards if str(card["plane"]).endswith(plane)]

    named = "host" if is_host else ""
    if cards and not is_host:
        named = name_card(cards[0])

    kind = "tpu" if is_tpu(allocator) else "gpu"

    return Device(
        kind="cpu" if is_host else kind,
        name=note.device.name or named or allocator,
        memory_limit_bytes=limit_bytes,
    )


def _find_warnings(
    steps: Sequence[Step],
    note: RunNote,
    allocator: str,
) -> list[str]:
    warnings = [note.caution] if note.caution else []
    watch = note.watch

    if watch and watch.is_cut and watch.whole_run:
        warnings.append(
            "The trace ends before the program does; its part counts as the step."
        )

    if allocator == "mklcpu":
        warnings.append(_TEXTS["no_bfc"])
    if not steps:
        warnings.append(_TEXTS["no_steps"])

    return [*warnings, *_warn_about_values(note)]


def _warn_about_values(note: RunNote) -> list[str]:
    """Return a warning about unknown values on a simulated card that decide what runs."""
    if not note.unknown_values:
        return []

    names = [f"{name} ({decides})" for name, decides in note.unknown_values.items()]
    steps = (
        f"Step {STEP_WITH_ALL} ran as if they select everything, the other steps as if they select "
        "nothing: the peaks of the steps are the range, without further trips of a loop. Sizes without "
        "a bound and numbers that Python reads are taken for 0."
    )
    if note.watch is not None and note.watch.whole_run:
        steps = "The program ran as if they select nothing, so a failure here may not occur on a card."

    return [
        "A simulated card lacks values, such as numbers computed from weights: "
        f"{list_first(names, _MOST_NAMED)}. {steps}"
    ]


def _warn_about_cut(table: pd.DataFrame, allocator: str) -> list[str]:
    """Return a warning if the last step ends before it frees its activations.

    A whole step frees them before its last allocation: in the backward pass, or after each op of
    inference.
    """
    own = table[(table["allocator"] == allocator) & table["step"].notna()]
    own = own[own["step"] == own["step"].max()]
    made = own[own["category"] == Category.ACTIVATION]
    left = made[made["dies"] > own["born"].max()]
    made_bytes = made["requested_bytes"].sum()

    left_bytes = int(left["requested_bytes"].sum())
    if len(made) < _LEAST_ACTIVATIONS or 2 * left_bytes <= made_bytes:
        return []

    return [
        "The last step probably failed, or the trace ends inside a step: "
        f"{format_bytes(left_bytes)} of its activations are alive after its last allocation. So the "
        "peak is a lower bound, and the trace does not show their readers."
    ]


_TOLERANCE = 0.06  # of a card's memory, relative to the catalogue's figure


def name_card(facts: Mapping[str, Statistic]) -> str:
    """Return a card's name, or its properties if no known card has them; empty without properties."""
    units = int(facts.get("core_count", 0))
    memory = int(facts.get("memory_size", 0))
    names = ("compute_cap_major", "compute_cap_minor")
    version = tuple(int(facts.get(name, 0)) for name in names)

    if not units or not memory:
        return ""

    described = f"GPU with {units} multiprocessors, {format_bytes(memory)}"
    if facts.get("device_vendor") == "AMD":
        described = f"AMD {described}"
        version = (0, 0)  # as in the catalogue

    clock_mhz = float(facts.get("clock_rate", 0)) / 1000
    bandwidth = float(facts.get("memory_bandwidth", 0))
    found = {}

    for gpu in all_gpus():
        is_alike = gpu.compute_capability == version and gpu.sm_count == units
        if is_alike and abs(memory / gpu.memory_bytes - 1) <= _TOLERANCE:
            away = abs(bandwidth / gpu.bandwidth_bytes_s - 1)
            found[gpu.name] = away + abs(clock_mhz / gpu.clock_mhz - 1)

    return min(found, key=lambda name: found[name], default=described)

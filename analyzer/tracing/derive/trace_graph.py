"""The graph of a trace without a capture note.

Ops come from the names of allocations and kernels, their outputs from the allocations, and edges from
two sources: the op before a buffer's free is its last user (``free``, or ``order`` if another thread
frees), and an op of the gradient tape contains the name of its forward op (``name``).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd

from analyzer.model.contract.run_note import (
    CONVOLUTIONS,
    PARAMETER_GRADIENTS,
    Op,
    TensorSpec,
    split_tensor,
)
from analyzer.model.graph.graph_index import (
    GraphIndex,
    Phase,
    build_graph_index,
    is_in_gradient_scope,
)
from analyzer.model.recording.attribution import FOLDED, RECEIVED
from analyzer.model.recording.records import (
    AUTOTUNING,
    HOST_ALLOCATORS,
    Instants,
    Step,
    TextNumbers,
)
from analyzer.tracing.derive.op_names import (
    CALLS,
    GUARDS_BYTES,
    LAYOUT,
    find_forward_op,
    find_gradient_kernel,
    find_optimizer,
    find_scopes,
    is_apply,
    make_type_finder,
    read_shape,
)
from analyzer.tracing.parse.event_columns import split_annotation
from analyzer.tracing.parse.xplane import RawTrace

_COPIES = ("_Send", "_Recv", "_HostSend", "_HostRecv")


def _read_ops(
    texts: TextNumbers,
    table: pd.DataFrame,
    time: str,
    column: str,
    name: Callable[[str], str],
    chosen: pd.Series,
) -> tuple[Instants, ...]:
    """Return times, threads and op numbers of the chosen rows that have a name."""
    numbers = [texts.of(name(text)) for text in table[column].cat.categories]
    numbers.append(0)  # code -1, a missing value, reads the last number

    op = np.array(numbers, np.int64)[table[column].cat.codes.to_numpy()]
    thread = table["thread"].to_numpy().astype(np.int64)
    known = chosen.to_numpy() & (op > 0)

    return table[time].to_numpy()[known], thread[known], op[known]


class OpSequence:
    """The ops of a trace by thread and time, from allocations, launches and executor events.

    An op's inputs are released when its kernel has been launched (``ExecutorState::Process`` in
    ``executor.cc``), on the same thread. So the op before a free on that thread is the buffer's last
    user, unless the thread runs ops without any event.
    """

    def __init__(
        self,
        raw: RawTrace,
        eager: frozenset[str],
        starts: Instants,
    ) -> None:
        """Collect the ops; the runs of ``eager`` types are numbered in each step: ``Conv2D#7``.

        ``starts`` are the starts of the steps in picoseconds.
        """
        texts = TextNumbers("")
        events = raw.events
        kernels = raw.kernels
        runs = raw.op_runs

        parts = (
            _read_ops(
                texts,
                events,
                "time_ps",
                "op",
                lambda op: "" if op in _WITHOUT_OP else op,
                events["kind"] > 0,
            ),
            _read_ops(
                texts,
                kernels,
                "start_ps",
                "annotation",
                _launcher,
                kernels["thread"] > 0,
            ),
            _read_ops(texts, runs, "start_ps", "op", str, runs["start_ps"].notna()),
        )

        time, thread, op = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((time, thread))
        self._time = time[order]
        self._thread = thread[order]
        self._op = op[order]

        is_eager = np.array([text in eager for text in texts.texts], bool)[self._op]
        is_other_op = np.diff(self._op) != 0
        is_other_thread = np.diff(self._thread) != 0
        begins = np.append(True, is_other_op | is_other_thread)

        step = np.searchsorted(starts, self._time, side="right").tolist()
        counts: dict[int, int] = {}
        number = 0

        for at in np.flatnonzero(is_eager).tolist():
            if begins[at]:
                name = texts.texts[self._op[at]]
                counts[step[at]] = counts.get(step[at], 0) + 1
                number = texts.of(f"{name}#{counts[step[at]]}")

            self._op[at] = number

        self._names = texts.texts

    def before(
        self,
        thread: Instants,
        time: Instants,
    ) -> list[str]:
        """Return the op that ran before each instant on a thread; empty for none."""
        found = [""] * len(thread)

        for number in np.unique(thread).tolist():
            first, last = np.searchsorted(self._thread, [number, number + 1])
            own_times = self._time[first:last]

            for row in np.flatnonzero(thread == number).tolist():
                place = int(np.searchsorted(own_times, time[row], side="left"))
                if place:
                    found[row] = self._names[self._op[first + place - 1]]

        return found

    def first_times(self) -> dict[str, int]:
        """Return the time at which each op began first."""
        first = pd.Series(self._time).groupby(self._op).min()
        return {self._names[op]: time for op, time in first.to_dict().items()}


def _launcher(annotation: str) -> str:
    """Return the op in a kernel's annotation; empty for a copy between devices or no op."""
    found = split_annotation(annotation)
    if found is None or found[1] in _COPIES:
        return ""

    return found[0]


# Names of requests that no op of the program makes.
_WITHOUT_OP = ("", RECEIVED, AUTOTUNING)

# Limit of the outputs of one op; a loop's buffers are its outputs in turn.
_MOST_OUTPUTS = 64

# Limit of the buffers that one op frees as their last user.
_MOST_INPUTS = 256

# In the name of a copy of a convolution's input.
_COPY_OF_INPUT = re.compile(r"BackpropFilter(V2)?-0-")

# Name of a sum of gradients, or of a term that the tape makes dense (``indexed_slices.py``).
_SUM = re.compile(r"AddN(_\d+)?(/inputs_\d+)?$")
_NEVER = 1 << 62  # a time after the trace


def derive_graph(
    table: pd.DataFrame,
    raw: RawTrace,
    steps: Sequence[Step],
) -> tuple[pd.DataFrame, GraphIndex]:
    """Return the graph of the functions and eager steps that ran in a trace.

    The table gets the graph's names of ops and tensors.
    """
    building = _Building(table, raw, steps)

    building.connect()
    known = {*building.outputs, *building.inputs, *raw.op_types}
    ops = building.list_ops(known)
    names = table["op"].astype(object).to_numpy().copy()

    tensors = table["tensor"].astype(object).to_numpy().copy()
    tensors[list(building.tensors)] = list(building.tensors.values())
    names[list(building.renamed)] = list(building.renamed.values())
    table = table.assign(tensor=pd.Categorical(tensors), op=pd.Categorical(names))

    index = build_graph_index(
        ops,
        gradients=building.gradients,
        scopes=find_scopes(ops, known),
    )

    phases = building.find_phases([op.name for op in ops])

    return table, replace(
        index,
        phases=phases,
        evidence=building.edges,
        early=building.find_early(phases),
    )


class _Building:
    """A graph while it is derived.

    Attributes:
        outputs, inputs: Op -> its outputs, and the tensors that it uses.
        tensors: Row of the allocations table -> the tensor that the buffer holds.
        renamed: Row -> its op, for eager runs.
        edges: Input (tensor or op) and op of each edge -> its source.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        raw: RawTrace,
        steps: Sequence[Step],
    ) -> None:
        self._raw = raw
        names = table["op"].astype(object).to_numpy()
        is_born_here = (table["born"] >= 0).to_numpy()
        named = ~np.isin(names, _WITHOUT_OP) & is_born_here
        in_function = (table["run_id"] != 0).to_numpy() & named & _is_in_graph(table)
        in_function &= np.array([FOLDED not in name for name in names], bool)
        scoped = np.array(["/" in name for name in names], bool)

        in_step = table["step"].notna().to_numpy()
        is_eager = named & ~scoped & ~in_function & in_step

        self._starts = np.array([step.start_ps or 0 for step in steps], np.int64)
        eager = set(names[is_eager])

        if is_eager.any():
            eager |= {op for op in raw.op_types if is_apply(op)}

        sequence = OpSequence(raw, frozenset(eager), self._starts)
        self._first = sequence.first_times()

        self._names = names = names.copy()
        times = raw.events["time_ps"].to_numpy(np.int64)
        threads = raw.events["thread"].to_numpy(np.int64)
        born = table["born"].to_numpy()[is_eager]
        names[is_eager] = sequence.before(threads[born], times[born] + 1)

        self._rows = np.flatnonzero(in_function | is_eager)
        self._table = table.iloc[self._rows]
        self._size: dict[int, int] = self._table["requested_bytes"].to_dict()
        self._find_frees(sequence, threads, times)

        self.renamed = {row: names[row] for row in self._size if "#" in names[row]}
        self._find_type = make_type_finder(raw.op_types, self._list_guarded())

        self.outputs: dict[str, list[TensorSpec]] = {}
        self.inputs: dict[str, list[str]] = {}
        self.tensors: dict[int, str] = {}
        self.edges: dict[tuple[str, str], str] = {}

    def _find_frees(
        self,
        sequence: OpSequence,
        threads: Instants,
        times: Instants,
    ) -> None:
        """Find the op before each free, and the op that frees, of the buffers that are freed."""
        dies = self._table["dies"].to_numpy()
        freed = np.flatnonzero(dies < len(times))
        rows = self._rows[freed].tolist()
        instants = dies[freed]

        users = sequence.before(threads[instants], times[instants])
        pairs = zip(rows, users, strict=True)
        self._users: dict[int, str] = {row: user for row, user in pairs if user}

        # TensorFlow 2.9 and later record the op that frees (``AddTraceMe`` in ``bfc_allocator.cc``).
        events = self._raw.events
        freers = events["op"].astype(object).to_numpy()
        has_freers = (events["kind"] < 0) & (freers != "")

        self._freers: dict[int, str] = {}
        if has_freers.any():
            self._freers = dict(zip(rows, freers[instants], strict=True))

    def _list_guarded(self) -> list[str]:
        """Return the ops that free a large buffer themselves: workspaces, and guards around them.

        Other ops free the results of MLIR's kernels, which are requested in the same way.
        """
        is_large = self._table["requested_bytes"] >= GUARDS_BYTES
        is_on_host = self._table["allocator"].isin(HOST_ALLOCATORS)
        is_raw = (self._table["region"] == "") & is_large & ~is_on_host
        rows = self._rows[is_raw.to_numpy()].tolist()

        return [str(self._names[row]) for row in rows if self._is_scratch(row)]

    def connect(self) -> None:
        """Find the tensors of the buffers, and the edges from frees and copies."""
        self._add_outputs()
        frees = Counter(self._users.values())

        for row, user in self._users.items():
            tensor = self.tensors.get(row, "")

            # A step that fails frees all of its buffers after its last op.
            is_read = frees[user] <= _MOST_INPUTS
            is_input = tensor and is_read and split_tensor(tensor)[0] != user

            if is_input and (tensor, user) not in self.edges:
                self.edges[tensor, user] = "free"
                self.inputs.setdefault(user, []).append(tensor)

    def _add_outputs(self) -> None:
        """Find the tensors of the buffers: outputs outlive the op that requested them."""
        events = self._raw.events
        columns = (self._table[name].tolist() for name in ("region", "dtype", "shape"))
        facts = list(zip(*columns, strict=True))
        threads = events["thread"].to_numpy()[self._table["born"].to_numpy()]

        burst: tuple[int, str] = (-1, "")
        used = 0

        for at in np.lexsort((self._table["born"].to_numpy(), threads)).tolist():
            row = int(self._rows[at])
            name = str(self._names[row])
            (region, dtype, shape) = facts[at]

            if (int(threads[at]), name) != burst:
                burst = (int(threads[at]), name)
                used = 0

            outputs = self.outputs.setdefault(name, [])

            # A convolution may drop its output and return scratch memory (``conv_grad_input_ops.cc``).
            may_drop = self._find_type(name) in CONVOLUTIONS
            is_output = region == "output" and not may_drop

            is_output |= not self._is_scratch(row)
            if region == "dynamic" or not is_output or used >= _MOST_OUTPUTS:
                continue
            if used == len(outputs):
                outputs.append(TensorSpec(dtype, read_shape(shape)))

            self.tensors[row] = f"{name}:{used}"
            used += 1

    def _is_scratch(self, row: int) -> bool:
        """Say whether the op that requested a buffer also frees it."""
        name = str(self._names[row])
        plain = name.partition("#")[0]

        return self._users.get(row) == name and self._freers.get(row, plain) == plain

    def list_ops(self, known: set[str]) -> list[Op]:
        """Return the ops in the order in which they began."""
        updates = {name for name in self._first if is_apply(self._find_type(name))}
        names = {*self.outputs, *self.inputs, *updates}
        ops = []

        for name in sorted(
            names,
            key=lambda name: (self._first.get(name, _NEVER), name),
        ):
            forward = find_forward_op(name, known)
            controls = (forward,) if forward in self.outputs else ()
            if controls:
                self.edges[forward, name] = "name"

            inputs = self.inputs.get(name, ())
            outputs = self.outputs.get(name, ())
            op_type = self._find_type(name)
            ops.append(
                Op(name, op_type, tuple(inputs), controls, outputs=tuple(outputs))
            )

        return ops

    def find_phases(self, names: Sequence[str]) -> dict[str, Phase]:
        """Return the phase of each op, by its name, else by its order and the tensors around it."""
        phases = {name: self._find_phase(name) for name in names}
        begin = self._find_gradient_start(phases)

        for name in names:
            inputs = self.inputs.get(name, ())
            makers = {phases.get(split_tensor(tensor)[0]) for tensor in inputs}
            is_copy = LAYOUT in name and (
                makers == {Phase.FORWARD} or _COPY_OF_INPUT.search(name)
            )

            if is_copy and self._first.get(name, 0) < begin:
                # Shared with the backward op that it is named after.
                phases[name] = Phase.FORWARD

            if phases[name] is not Phase.FORWARD or is_in_gradient_scope(name):
                continue

            if self._first.get(name, 0) > begin:
                # The tape adds gradients outside its scope, as does the layout optimizer.
                plain = CALLS.sub("", name)
                is_near = "/" not in plain and Phase.BACKWARD in makers
                if is_near or _SUM.match(plain):
                    phases[name] = Phase.BACKWARD

        return phases

    def _find_gradient_start(self, phases: Mapping[str, Phase]) -> int:
        """Return a time before which no gradient existed.

        The loss depends on each forward op that an op of the tape is named after, so that the first
        gradient follows them all. A program with several losses has gradient kernels before that.
        """
        forward = [op for (op, _), source in self.edges.items() if source == "name"]
        loss = max((self._first.get(op, 0) for op in forward), default=_NEVER)
        backward = (name for name, phase in phases.items() if phase is Phase.BACKWARD)

        kernels = (
            name
            for name in backward
            if find_gradient_kernel(name) and LAYOUT not in name
        )

        return min([loss, *(self._first.get(name, 0) for name in kernels)])

    def find_early(self, phases: Mapping[str, Phase]) -> frozenset[str]:
        """Return the ops of the tape that began before any gradient existed."""
        start = self._find_gradient_start(phases)
        names = filter(is_in_gradient_scope, phases)

        return frozenset(
            name for name in names if self._first.get(name, _NEVER) < start
        )

    def _find_phase(self, name: str) -> Phase:
        if "#" in name:
            return self._find_eager_phase(name)
        if self._is_update(name):
            return Phase.UPDATE

        is_backward = is_in_gradient_scope(name) or f"{name}:0" in self.gradients

        return Phase.BACKWARD if is_backward else Phase.FORWARD

    def _find_eager_phase(self, name: str) -> Phase:
        """Return the phase of an eager op by the order of the step's ops."""
        time = self._first.get(name, 0)
        backward, update = self._eager_kernels.get(
            self._step_at(time),
            (_NEVER, _NEVER),
        )

        if time >= update:
            return Phase.UPDATE

        return Phase.BACKWARD if time >= backward else Phase.FORWARD

    def _step_at(self, time: int) -> int:
        return int(np.searchsorted(self._starts, time, side="right"))

    @cached_property
    def _eager_kernels(self) -> dict[int, tuple[int, int]]:
        """Time of the first gradient kernel and of the first kernel of the update by step."""
        bounds: dict[int, tuple[int, int]] = {}

        for name, time in self._first.items():
            if "#" not in name:
                continue

            step = self._step_at(time)
            backward, update = bounds.get(step, (_NEVER, _NEVER))
            op_type = self._find_type(name)

            if is_apply(op_type):
                update = min(update, time)
            elif find_gradient_kernel(op_type) == op_type != "":
                backward = min(backward, time)

            bounds[step] = backward, update

        return bounds

    @cached_property
    def gradients(self) -> frozenset[str]:
        """The tape's tensors that an optimizer uses, and results of gradient kernels."""
        found = set()

        for row, tensor in self.tensors.items():
            name, index = split_tensor(tensor)
            op_type = self._find_type(name)
            is_eager = "#" in name
            is_backward = is_in_gradient_scope(name) or (
                is_eager and self._find_eager_phase(name) is Phase.BACKWARD
            )
            if not (is_backward or op_type == "AddN"):
                continue

            is_first_result = op_type in PARAMETER_GRADIENTS and not index
            if is_first_result or self._is_update(self._users.get(row, "")):
                found.add(tensor)

        return frozenset(found)

    def _is_update(self, name: str) -> bool:
        return bool(find_optimizer(name)) or is_apply(self._find_type(name))


def _is_in_graph(table: pd.DataFrame) -> np.ndarray:
    """Return which buffers a function requested, and no eager op with a run of its own."""
    op = table["op"].astype(object)
    scoped = op.str.contains("/", regex=False).groupby(table["run_id"])
    several = op.groupby(table["run_id"]).transform("nunique") > 2
    found: np.ndarray = (scoped.transform("any") | several).to_numpy()

    return found

"""A trace's ops joined by name with the graph of a target.

Both come from the same code, but their names may differ: the executor puts the name of the call before
the ops of an inlined function, and a layer has another number if the program built other models before::

    trace   StatefulPartitionedCall/functional_3/conv2d_7/Relu
    graph   functional_1/conv2d_2/Relu
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd

from analyzer.model.contract.graph_note import split_tensor
from analyzer.model.graph.graph_index import (
    GraphIndex,
    ScopeTable,
    build_graph_index,
    find_consumers,
    find_inlined,
)
from analyzer.model.recording.records import Step
from analyzer.tracing.derive.op_names import find_optimizer, read_shape
from analyzer.tracing.derive.trace_graph import derive_graph
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace

_NUMBER: Final = re.compile(r"_\d+(?=/|$)")
_CALLS: Final = re.compile(r"^((Stateful)?PartitionedCall/)+")  # of inlined functions
_REWRITES: Final = re.compile(r"-\d+-[A-Za-z]+-LayoutOptimizer$")
"""End of the name of a transposition that Grappler inserts; see ``generic_layout_optimizer``."""


@dataclass(frozen=True, slots=True)
class SourceGraph:
    """A graph from outside a trace."""

    name: str  # its name in messages, such as ``the graph of train.py:build_model``
    index: GraphIndex
    batch_size: int | None = None  # its batch size; None if its shapes leave it open


@dataclass(frozen=True, slots=True)
class JoinedGraph:
    """A trace's graph with the ops of another source; the ops have the trace's names."""

    index: GraphIndex
    source: SourceGraph
    tensors: int  # number of named tensors of the step's functions in the trace
    joined: int  # number of those with an op of the source
    # The trace's, by the shapes of the joined tensors; None if unknown
    batch_size: int | None

    @property
    def says(self) -> str:
        """The match in words."""
        share = self.joined / self.tensors if self.tensors else 0.0

        return (
            f"{share:.1%} of the tensors of the traced steps ({self.joined:,} of {self.tensors:,}) "
            f"join {self.source.name} by op name."
        )


def join_graph(
    table: pd.DataFrame,
    derived: GraphIndex | None,
    source: SourceGraph,
) -> JoinedGraph:
    """Join a trace with a graph; other ops of the graph ``derived`` from its own names stay."""
    is_born = (table["op"].astype(str) != "") & (table["born"] >= 0)
    rows = table[is_born]
    in_steps = rows[rows["step"].notna()]
    if len(in_steps):
        rows = in_steps

    names = [str(op) for op in rows["op"].astype(object).unique()]
    if derived is not None:
        names += derived.ops

    found = match_names(names, source.index.ops)
    index = _rename(source, found)
    if derived is not None:
        index = _merge(index, derived)

    # Ops of other runs belong to the input pipeline or to Python, not to the graph.
    is_joined = rows["op"].astype(object).isin(found)
    runs = rows.loc[is_joined, "run_id"]
    runs = runs[runs != 0].unique()
    if len(runs):
        rows = rows[rows["run_id"].isin(runs)]

    joined = rows[rows["op"].astype(object).isin(found)]
    batch_size = _find_batch_size(joined, index, source.batch_size)

    return JoinedGraph(index, source, len(rows), len(joined), batch_size)


def match_names(names: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Return the name among ``others`` of each op or layer of a trace, if it has one.

    Names that differ otherwise are matched without their numbers, then without the model's name.
    """
    own = {name: name for name in others}
    names = list(dict.fromkeys(names))

    found = {}

    for name in names:
        op = find_inlined(name, own) or find_inlined(_REWRITES.sub("", name), own)
        if op is not None:
            found[name] = op

    taken = set(found.values())

    def group(
        ones: Iterable[str],
        skip: Container[str],
        root: bool,
    ) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = defaultdict(list)

        for name in ones:
            if name in skip:
                continue

            key = _CALLS.sub("", _NUMBER.sub("", name))
            if root:
                key = _drop_root(key)

            groups[key].append(name)

        return groups

    # Layers are numbered in the order of their creation in both programs.
    for mine_has_root, theirs_has_root in ((False, False), (False, True), (True, True)):
        candidates = group(own, taken, theirs_has_root)

        for key, mine in group(names, found, mine_has_root).items():
            theirs: list[str] = []
            if key and theirs_has_root:
                theirs = candidates.get(key, [])
            elif key:
                theirs = find_inlined(key, candidates) or []

            if len(mine) == len(theirs) and taken.isdisjoint(theirs):
                taken.update(theirs)
                mine.sort(key=_numbers)
                ordered = sorted(theirs, key=_numbers)
                found.update(zip(mine, ordered, strict=True))

    return found


def _drop_root(name: str) -> str:
    """Return an op or a layer without the model's name, its first scope; empty if it has none."""
    tape = "gradient_tape/" if name.startswith("gradient_tape/") else ""
    _, _, rest = name.removeprefix(tape).partition("/")

    if not rest or find_optimizer(name):
        return ""

    return tape + rest


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(number[1:]) for number in _NUMBER.findall(name))


def _rename(source: SourceGraph, found: Mapping[str, str]) -> GraphIndex:
    """Return the source's graph with the trace's names; an op that ran several times keeps the first."""
    index = source.index
    new: dict[str, str] = {}

    for name, op in found.items():
        new.setdefault(op, name)

    def rename(tensor: str) -> str:
        op, number = split_tensor(tensor)
        return f"{new[op]}:{number}" if op in new else tensor

    ops = []

    for name, old in index.ops.items():
        renamed = replace(
            old,
            name=new.get(name, name),
            inputs=tuple(map(rename, old.inputs)),
            control_inputs=tuple(new.get(one, one) for one in old.control_inputs),
        )
        ops.append(renamed)

    return GraphIndex(
        ops={op.name: op for op in ops},
        consumers=find_consumers(ops),
        gradients=frozenset(map(rename, index.gradients)),
        phases={new.get(name, name): phase for name, phase in index.phases.items()},
        layers={new.get(name, name): layer for name, layer in index.layers.items()},
        evidence={(given, op.name): "target" for op in ops for given in op.inputs},
    )


def _merge(index: GraphIndex, derived: GraphIndex) -> GraphIndex:
    """Return a graph with the ops of the derived one that it lacks, and their edges."""
    ops = {**derived.ops, **index.ops}
    gradients = {
        tensor
        for tensor in derived.gradients
        if split_tensor(tensor)[0] not in index.ops
    }

    return GraphIndex(
        ops=ops,
        consumers=find_consumers(ops.values()),
        gradients=index.gradients | gradients,
        phases={**derived.phases, **index.phases},
        layers={**derived.layers, **index.layers},
        evidence={**derived.evidence, **index.evidence},
        early=derived.early,
    )


def _find_batch_size(
    rows: pd.DataFrame,
    index: GraphIndex,
    given: int | None,
) -> int | None:
    """Return the batch size with which most tensors have the shape of the trace.

    It turns a tensor of the graph with the batch size ``given`` (None if open) into one of the trace.
    """
    votes: Counter[int] = Counter()

    ops = rows["op"].astype(str)
    shapes = rows["shape"].astype(str)

    for op, text in zip(ops, shapes, strict=True):
        shape = read_shape(text) or ()

        for spec in index.ops[op].outputs:
            if not spec.shape or len(spec.shape) != len(shape):
                continue
            if spec.shape[1:] != shape[1:]:
                continue

            first = spec.shape[0]
            size = shape[0] if first < 0 else 0

            if given is not None and first > 0 and shape[0] * given % first == 0:
                size = shape[0] * given // first

            if size:
                votes[size] += 1
                break

    return votes.most_common(1)[0][0] if votes else None


def find_graph(
    table: pd.DataFrame,
    raw: RawTrace,
    note: RunNote,
    steps: Sequence[Step],
    source: SourceGraph | None,
) -> tuple[pd.DataFrame, GraphIndex | None, JoinedGraph | None]:
    """Return the table with the tensors of the trace's graph, the graph, and its join with a source."""
    structure = index_note_graph(note)
    if structure is None:
        table, structure = derive_graph(table, raw, steps, note)
    if source is None:
        return table, structure, None

    join = join_graph(table, structure, source)

    # The graph of another program states nothing about this one.
    return table, join.index if 2 * join.joined >= join.tensors else structure, join


def index_note_graph(note: RunNote) -> GraphIndex | None:
    """Return the indexed graph of a note, None without one."""
    if not note.ops:
        return None

    names = {op.name for op in note.ops}

    return build_graph_index(
        [*note.ops, *(op for op in note.inside if op.name not in names)],
        traced=note.traced,
        gradients=note.gradients,
        nested_gradients=note.nested_gradients,
        scopes=ScopeTable(note.scopes),
    )

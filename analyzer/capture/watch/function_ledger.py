"""Every ``tf.function`` that a program calls: how often it was traced, and the reasons."""

import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, NamedTuple

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import collect_graphs, find_op_line
from analyzer.capture.private_names import list_concrete_functions
from analyzer.capture.run.source_frames import shorten_path
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.user_lines import find_calling_line, get_code
from analyzer.model.contract.watch_note import LargeConstant, Retrace, RetraceCause, TracedFunction

_MAX_RETRACES: Final = 50  # of one function, the latest
_MAX_LEAVES: Final = 256  # of a call's arguments that are compared
_MAX_VALUE: Final = 40  # characters of a Python value in words
_MIN_CONSTANT_BYTES: Final = 1 << 10  # of a constant that is counted
_LARGE_BYTES: Final = 1 << 20  # of a constant that gets a row of its own


class _Argument(NamedTuple):
    """A leaf of a call's arguments, by kind and in words."""

    kind: RetraceCause = "object"
    words: str = "nothing"


@dataclass
class FunctionRecord:
    """All ``tf.function`` objects made from one Python function; see ``TracedFunction``."""

    code: CodeType | None
    trains: bool = False  # whether gradients were taken while it was traced
    objects: list[weakref.ref[Any]] = field(default_factory=list)
    made: int = 0
    calls: int = 0
    traces: int = 0
    called_at: str = ""
    retraces: deque[Retrace] = field(default_factory=lambda: deque(maxlen=_MAX_RETRACES))
    partitions: list[Any] = field(default_factory=list)  # graphs that the executor ran first
    _signature: dict[str, _Argument] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The Python function's name."""
        return "a function" if self.code is None else self.code.co_name

    @property
    def where(self) -> str:
        """``file:line`` of its definition."""
        code = self.code
        return f"{shorten_path(code.co_filename)}:{code.co_firstlineno}" if code else ""

    @property
    def is_keras(self) -> bool:
        """Whether it is one of Keras' own loops, such as that of ``fit``."""
        return self.code is not None and "keras" in self.code.co_filename.split("site-packages")[-1]

    def alive(self) -> list[Any]:
        """Return the live objects."""
        return [thing for ref in self.objects if (thing := ref()) is not None]

    def add_traces(
        self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any], count: int
    ) -> None:
        """Note the ``count`` traces of a call, made after ``step`` steps."""
        old, new = self._signature, _describe_arguments(self.code, args, kwargs)
        self._signature = new
        self.traces += count
        self.called_at = find_calling_line()
        if self.traces == count:
            return
        names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        changes = [
            f"{name}: {old.get(name, _Argument()).words} -> {new.get(name, _Argument()).words}"
            for name in names[:3]
        ]
        if not changes and self.made > 1:
            changes = ["a new tf.function object"]
        elif not changes:
            changes = ["another object of the same type, or a value that the function closes over"]
        self.retraces.append(
            Retrace(
                step=step,
                call=self.calls,
                changed="; ".join([*changes, *["…"] * (len(names) > len(changes))]),
                cause=new.get(names[0], _Argument()).kind if names else "object",
            )
        )

    def describe(self, search: HolderSearch) -> TracedFunction:
        """Return the record as plain data."""
        alive = self.alive()
        concrete = list_concrete_functions(alive[-1]) if alive else []
        graphs = collect_graphs(concrete[-1].graph) if concrete else []
        constant_bytes = sum(one.size_bytes for one in _list_constants(graphs))
        graph_bytes = 0
        if graphs:
            try:
                graph_bytes = int(graphs[0].as_graph_def().ByteSize())
            except (ValueError, tf.errors.OpError):  # too large for a protobuf
                graph_bytes = constant_bytes
        return TracedFunction(
            name=self.name,
            where=self.where,
            called_at=self.called_at,
            objects=self.made,
            alive=len(alive),
            calls=self.calls,
            traces=self.traces,
            nodes=sum(len(one.get_operations()) for one in graphs),
            graph_bytes=graph_bytes,
            constant_bytes=constant_bytes,
            holder=search.find_container(alive[0]) if len(alive) > 2 else "",
            retraces=tuple(self.retraces),
            is_keras=self.is_keras,
        )


class FunctionLedger:
    """The records of all called functions, by code."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, FunctionRecord] = weakref.WeakKeyDictionary()
        self._records: dict[Any, FunctionRecord] = {}

    def get_record(self, function: Any) -> FunctionRecord:
        """Return the record of a ``tf.function`` object, a new one for new code."""
        record = self._known.get(function)
        if record is None:
            code = get_code(function.python_function)
            record = self._records.setdefault(code or id(function), FunctionRecord(code))
            self._known[function] = record
            record.objects = [ref for ref in record.objects if ref() is not None]
            record.objects.append(weakref.ref(function))
            record.made += 1
        return record

    def list_records(self) -> list[FunctionRecord]:
        """Return all records, the most often traced first."""
        return sorted(self._records.values(), key=lambda one: -one.traces)

    def list_constants(self) -> list[LargeConstant]:
        """Return the large constants of all live graphs, equal ones counted as copies."""
        found = [
            constant
            for record in self._records.values()
            for function in record.alive()
            for concrete in list_concrete_functions(function)
            for constant in _list_constants(collect_graphs(concrete.graph), _LARGE_BYTES)
        ]
        copies = Counter((one.where, one.name) for one in found)
        latest = {(one.where, one.name): one for one in found}
        return [replace(one, copies=copies[key]) for key, one in latest.items()]


def _list_constants(
    graphs: Sequence[Any], least_bytes: int = _MIN_CONSTANT_BYTES
) -> list[LargeConstant]:
    return [
        LargeConstant(
            kind="graph",
            where=find_op_line(op),
            dtype=value.dtype.name,
            shape=tuple(value.shape.as_list()),
            size_bytes=size_bytes,
            name=op.name,
        )
        for graph in graphs
        for op in graph.get_operations()
        if op.type == "Const"
        for value in op.outputs
        if (size_bytes := (value.shape.num_elements() or 0) * value.dtype.size) >= least_bytes
    ]


def takes_gradients(function: Any) -> bool:
    """Return whether a traced ``tf.function`` takes gradients, from the names of its ops."""
    concrete = list_concrete_functions(function)
    return bool(concrete) and any(
        "gradient_tape" in op.name or op.type.startswith("ResourceApply")
        for graph in collect_graphs(concrete[-1].graph)
        for op in graph.get_operations()
    )


def _describe_arguments(
    code: CodeType | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, _Argument]:
    """Return each leaf of a call's arguments, by name."""
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    named = [(names[i] if i < len(names) else f"argument {i}", arg) for i, arg in enumerate(args)]
    described: dict[str, _Argument] = {}
    for name, value in (*named, *kwargs.items()):
        try:
            leaves = tf.nest.flatten(value)
        except (TypeError, ValueError):
            leaves = [value]
        for index, leaf in enumerate(leaves[: _MAX_LEAVES - len(described)]):
            described[name if len(leaves) == 1 else f"{name}[{index}]"] = _describe_leaf(leaf)
    return described


def _describe_leaf(leaf: Any) -> _Argument:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None:
        is_tensor = isinstance(leaf, tf.Tensor | tf.Variable)
        words = dtype.name if is_tensor else f"{dtype} array"
        return _Argument("shape", f"{words}{_format_shape(shape)}")
    if isinstance(leaf, bool | int | float | str | bytes | type(None)):
        return _Argument("value", f"Python {type(leaf).__name__} {repr(leaf)[:_MAX_VALUE]}")
    element = getattr(leaf, "element_spec", None)
    if element is not None:
        return _Argument("shape", f"{type(leaf).__name__} of {str(element)[:200]}")
    return _Argument("object", f"{type(leaf).__name__} object")


def _format_shape(shape: Any) -> str:
    try:
        return f"[{','.join('?' if axis is None else str(axis) for axis in shape)}]"
    except (TypeError, ValueError):
        return "[?]"

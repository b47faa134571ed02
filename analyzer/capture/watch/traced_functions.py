"""Every ``tf.function`` that a program calls: how often it was traced, and the reasons."""

import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType
from typing import Any, TypeAlias

import tensorflow as tf

from analyzer.capture.graph.plain_graphs import (
    collect_graphs,
    count_bytes,
    find_op_line,
    get_shape,
)
from analyzer.capture.private_names import list_concrete_functions
from analyzer.capture.run.wrapped_calls import Arguments
from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.capture.watch.user_lines import (
    find_calling_line,
    format_code,
    list_codes,
)
from analyzer.model.contract.run_note import (
    LargeConstant,
    Retrace,
    RetraceCause,
    TracedFunction,
)

_MAX_RETRACES = 50  # of one function, the latest
_MAX_LEAVES = 256  # of a call's arguments that are compared
_MAX_VALUE = 40  # characters of a Python value in words
_MAX_CHANGES = 3  # in words
_LARGE_BYTES = 1 << 20  # of a constant that gets a row of its own

# A leaf of a call's arguments, by kind and in words.
_Argument: TypeAlias = tuple[RetraceCause, str]
_NOTHING: _Argument = ("object", "nothing")


class FunctionRecord:
    """All ``tf.function`` objects of the same codes; see ``TracedFunction``."""

    def __init__(self, code: CodeType | None) -> None:
        self.code = code
        self.trains = False  # whether gradients were taken while it was traced
        self.objects: list[weakref.ref[Any]] = []
        self.made = self.calls = self.traces = 0
        self.called_at = ""
        self.retraces: deque[Retrace] = deque(maxlen=_MAX_RETRACES)
        self.partitions: list[Any] = []  # graphs that the executor ran first
        self._arguments: dict[str, _Argument] = {}

    @property
    def name(self) -> str:
        """The Python function's name."""
        return "a function" if self.code is None else self.code.co_name

    @property
    def where(self) -> str:
        """``file:line`` of its definition."""
        return "" if self.code is None else format_code(self.code)

    @property
    def is_keras(self) -> bool:
        """Whether it is one of Keras' own loops, such as that of ``fit``."""
        if self.code is None:
            return False

        return "keras" in self.code.co_filename.split("site-packages")[-1]

    def list_alive(self) -> list[Any]:
        """Return the live objects, the latest last."""
        return [thing for ref in self.objects if (thing := ref()) is not None]

    def add_traces(
        self,
        step: int,
        args: Arguments,
        kwargs: dict[str, Any],
        count: int,
    ) -> None:
        """Note the ``count`` traces of a call, made after ``step`` steps."""
        old = self._arguments
        self._arguments = new = _describe_arguments(self.code, args, kwargs)
        self.traces += count
        self.called_at = find_calling_line()

        if self.traces == count:
            return

        changes: list[str] = []
        cause: RetraceCause = "object"

        for name in {**new, **old}:
            before = old.get(name, _NOTHING)
            after = new.get(name, _NOTHING)
            if before != after:
                cause = cause if changes else after[0]
                changes.append(f"{name}: {before[1]} -> {after[1]}")

        if len(changes) > _MAX_CHANGES:
            changes[_MAX_CHANGES:] = ["…"]

        changed = (
            "; ".join(changes)
            or "a new function or argument object, or a value of the closure"
        )
        self.retraces.append(
            Retrace(step=step, call=self.calls, changed=changed, cause=cause)
        )

    def describe(self, search: HolderSearch) -> TracedFunction:
        """Return the record as plain data."""
        alive = self.list_alive()

        return TracedFunction(
            name=self.name,
            where=self.where,
            called_at=self.called_at,
            objects=self.made,
            alive=len(alive),
            calls=self.calls,
            traces=self.traces,
            holder=search.find_container(alive) if len(alive) > 2 else "",
            retraces=tuple(self.retraces),
            is_keras=self.is_keras,
        )


class FunctionLedger:
    """The records of all called functions, by their codes."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, FunctionRecord] = (
            weakref.WeakKeyDictionary()
        )
        self._records: dict[Any, FunctionRecord] = {}

    def get_record(self, function: Any) -> FunctionRecord:
        """Return the record of a ``tf.function`` object, a new one for new code."""
        record = self._known.get(function)
        if record is None:
            codes = tuple(list_codes(function.python_function))
            code = codes[0] if codes else None
            record = self._records.setdefault(
                codes or id(function), FunctionRecord(code)
            )
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
        found: dict[tuple[str, str], LargeConstant] = {}
        concrete: list[Any] = []

        for function in list(self._known):
            concrete += list_concrete_functions(function)

        for one in concrete:
            for constant in _list_constants(collect_graphs(one.graph)):
                key = constant.where, constant.name
                copies = found[key].copies if key in found else 0
                found[key] = replace(constant, copies=copies + 1)

        return list(found.values())


def _list_constants(graphs: list[Any]) -> Iterator[LargeConstant]:
    for graph in graphs:
        for op in graph.get_operations():
            if op.type != "Const":
                continue

            value = op.outputs[0]
            size_bytes = count_bytes(value)

            if size_bytes >= _LARGE_BYTES:
                yield LargeConstant(
                    kind="graph",
                    where=find_op_line(op),
                    dtype=value.dtype.name,
                    shape=get_shape(value),
                    size_bytes=size_bytes,
                    name=op.name,
                )


def get_latest_trace(function: Any) -> Any:
    """Return the latest concrete function of a ``tf.function``; None if it is not traced."""
    return next(reversed(list_concrete_functions(function)), None)


def takes_gradients(function: Any) -> bool:
    """Return whether a traced ``tf.function`` takes gradients, from the names of its ops."""
    concrete = get_latest_trace(function)
    graphs = [] if concrete is None else collect_graphs(concrete.graph)

    return any(
        "gradient_tape" in op.name or op.type.startswith("ResourceApply")
        for graph in graphs
        for op in graph.get_operations()
    )


def _describe_arguments(
    code: CodeType | None,
    args: Arguments,
    kwargs: dict[str, Any],
) -> dict[str, _Argument]:
    """Return each leaf of a call's arguments, by name."""
    names = () if code is None else code.co_varnames[: code.co_argcount]
    named = dict(kwargs)
    for index, value in enumerate(args):
        named[names[index] if index < len(names) else f"argument {index}"] = value

    described: dict[str, _Argument] = {}
    for name, value in named.items():
        try:
            leaves = tf.nest.flatten(value)
        except (TypeError, ValueError):
            leaves = [value]

        del leaves[_MAX_LEAVES - len(described) :]

        for index, leaf in enumerate(leaves):
            path = name if len(leaves) == 1 else f"{name}[{index}]"
            described[path] = _describe_leaf(leaf)

    return described


def _describe_leaf(leaf: Any) -> _Argument:
    kind = type(leaf).__name__
    shape = getattr(leaf, "shape", None)
    dtype = getattr(leaf, "dtype", None)

    if shape is not None and dtype is not None:
        words = f"{dtype} array"
        if isinstance(leaf, tf.Tensor | tf.Variable):
            words = dtype.name

        axes = ["?" if axis is None else str(axis) for axis in shape]
        return "shape", f"{words}[{','.join(axes)}]"

    if leaf is None or isinstance(leaf, bool | int | float | str | bytes):
        return "value", f"Python {kind} {repr(leaf)[:_MAX_VALUE]}"

    element = getattr(leaf, "element_spec", None)
    if element is not None:
        return "shape", f"{kind} of {str(element)[:200]}"

    return "object", f"{kind} object"

"""Loops that also carry the true values of the variables that decide their end."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from analyzer.capture.private_names import (
    is_eager,
)
from analyzer.capture.run.host_values import HostValues, get_tables


class NeedLoopTwin(BaseException):
    """A loop must also carry the twin of one of its variables, or must not: the body loses it."""

    def __init__(self, loop: object, index: int, *, is_lost: bool = False) -> None:
        self.loop = loop
        self.index = index
        self.is_lost = is_lost


_CARRIED = (
    tf.float64,
    tf.float32,
    tf.int64,
    tf.int32,
    tf.bool,
)


def make_loop(
    values: HostValues,
    old: Callable[..., Any],
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Build a loop; if a computed value decides, with twins of the variables that lead to it."""
    carried: list[int] = []
    lost: set[int] = set()

    while True:
        loop = _Loop(values, cond, body, loop_vars, carried, lost)
        try:
            return loop.build(old, shape_invariants, args, kwargs)
        except NeedLoopTwin as need:
            if need.loop is not loop:
                raise

            if need.is_lost:
                lost.add(need.index)
            else:
                carried = [*carried, need.index]


class _Loop:
    """One try to build a loop with the twins of some of its variables."""

    def __init__(
        self,
        values: HostValues,
        cond: Any,
        body: Any,
        loop_vars: Any,
        carried: list[int],
        lost: set[int],
    ) -> None:
        self.values = values
        self.cond = cond
        self.body = body
        self.carried = carried
        self.lost = lost  # carried variables without a twin
        self.loop_vars = loop_vars
        self.flat = [_get_tensor(one) for one in _flatten(self.loop_vars)]
        self.twins: dict[
            int, Any
        ] = {}  # index of the variable -> its first twin, or None
        self.counters: set[int] = set()

    def build(self, old: Any, shape_invariants: Any, args: Any, kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        self._find_twins(graph)
        names = [index for index in self.carried if self.twins[index] is not None]

        if not names:
            own_loop = self._decide, self._run, self.loop_vars, shape_invariants
            return old(*own_loop, *args, **kwargs)

        with self.values.making(graph):
            encoded = [_encode(self.twins[index]) for index in names]

        invariants = shape_invariants
        if invariants is None:
            invariants = tf.nest.map_structure(lambda _: None, self.loop_vars)

        flat_invariants = tf.nest.flatten(invariants)
        is_flat = len(flat_invariants) == len(self.flat)
        limits = []

        for index, twin in zip(names, encoded, strict=True):
            invariant = flat_invariants[index] if is_flat else None
            limits.append(_limit_shape(invariant, twin, self.twins[index]))

        def call(part: Any, own: Any, others: Any) -> Any:
            return part(*own, others=dict(zip(names, others, strict=True)))

        own, others = old(
            partial(call, self._decide),
            partial(call, self._run),
            (self.loop_vars, encoded),
            (invariants, limits),
            *args,
            **kwargs,
        )
        tables = get_tables(graph)
        flat_results = [_get_tensor(one) for one in _flatten(own)]

        with self.values.making(graph):
            for index, bits in zip(names, others, strict=True):
                twin = _decode(bits, self.twins[index].dtype)
                tables.twins[flat_results[index].name] = twin

        if len(flat_results) == 1 and not kwargs.get("return_same_structure", True):
            return _flatten(own)[0]

        return own

    def _find_twins(self, graph: Any) -> None:
        """Find the first twins of the variables that are carried."""
        for index in self.carried:
            first = graph.capture(tf.convert_to_tensor(self.flat[index]))
            is_carried = first.dtype in _CARRIED and index not in self.lost
            self.twins[index] = self.values.find(first) if is_carried else None

    def _register(self, graph: Any, own: Any, others: dict[int, Any]) -> None:
        """Register the twins of a graph's arguments, or that a twin must be carried."""
        tables = get_tables(graph)
        places: dict[str, int] = {}

        for index, leaf in enumerate(_flatten(own)):
            tensor = _get_tensor(leaf)
            places[tensor.name] = index

            if index in others:
                with self.values.making(graph):
                    twin = _decode(others[index], tensor.dtype)

                tables.twins[tensor.name] = twin
            elif index in self.twins:
                tables.twins[tensor.name] = None
            else:
                tables.arguments[tensor.name] = partial(self._ask, index)

        def is_counter(name: str) -> bool:
            index = places.get(name)
            if index is None:  # the loop's own counter
                return True

            tensor = self.flat[index]
            is_count = tf.as_dtype(getattr(tensor, "dtype", tf.int32)) == tf.int32

            if index in self.twins or not is_count:
                return False

            self.counters.add(index)

            return True

        tables.fixed_arguments = is_counter

    def _ask(self, index: int) -> Any:
        raise NeedLoopTwin(self, index)

    def _decide(self, *own: Any, others: dict[int, Any] | None = None) -> Any:
        graph = tf.compat.v1.get_default_graph()
        self._register(graph, own, others or {})
        pred = self.cond(*own)

        if not tf.is_tensor(pred) or is_eager(pred):
            return pred

        pred = graph.capture(pred)
        twin = self.values.find(pred)

        if twin is None:
            self.values.note_unknown(pred.op, "the trips of a loop")
            return pred

        return self.values.wait(graph, twin, pred)

    def _run(self, *own: Any, others: dict[int, Any] | None = None) -> Any:
        graph = tf.compat.v1.get_default_graph()
        self._register(graph, own, others or {})
        results = self.body(*own)

        if not tf.nest.is_nested(results):
            results = [results]

        flat = [_get_tensor(one) for one in _flatten(results)]
        twins = []

        for index in others or ():
            tensor = graph.capture(
                tf.convert_to_tensor(flat[index], self.twins[index].dtype)
            )
            twin = self.values.find(tensor)

            if twin is None:
                raise NeedLoopTwin(self, index, is_lost=True)

            with self.values.making(graph):
                twins.append(_encode(twin))

        for index in self.counters:  # one with another value needs a twin
            result = flat[index]
            is_computed = tf.is_tensor(result) and not is_eager(result)
            if is_computed and not self.values.is_fixed(graph.capture(result)):
                raise NeedLoopTwin(self, index)

        if others is None:
            return results

        return (list(results), twins)


def _flatten(structure: Any) -> list[Any]:
    return list(tf.nest.flatten(structure, expand_composites=True))


def _get_tensor(leaf: Any) -> Any:
    return leaf.flow if isinstance(leaf, tf.TensorArray) else leaf


def _limit_shape(invariant: Any, encoded: Any, twin: Any) -> Any:
    """Return the shape that a carried twin keeps: open where the variable's is."""
    if invariant is None:
        return encoded.shape

    shape = tf.TensorShape(getattr(invariant, "shape", invariant))
    if (
        shape.rank is None
        or encoded.shape.rank is None
        or encoded.shape.rank == twin.shape.rank
    ):
        return shape

    return shape.concatenate(encoded.shape[twin.shape.rank :])


def _encode(twin: Any) -> Any:
    """Return the bits of a tensor as ``int32``, which the executor keeps on the host; no gradient."""
    if twin.dtype == tf.int32:
        return tf.identity(twin)

    if twin.dtype == tf.bool:
        return tf.cast(twin, tf.int32)

    return tf.bitcast(twin, tf.int32)


def _decode(bits: Any, dtype: Any) -> Any:
    if dtype == tf.int32:
        return bits

    if dtype == tf.bool:
        return tf.cast(bits, tf.bool)

    return tf.bitcast(bits, dtype)

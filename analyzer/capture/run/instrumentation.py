"""Observe gradients, layer scopes and phases while the user's step is traced or run.

The graph does not say which tensors are gradients or which layer a name scope belongs to.
``GradientTape.gradient``, ``Optimizer.apply`` and Keras' name scopes do; a capture wraps them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from analyzer.capture.graph.op_phases import PhaseFinder
from analyzer.capture.private_names import (
    closes_scope,
    is_eager,
    keras_name_scope,
    op_callbacks,
)
from analyzer.capture.run.step_variables import (
    find_address,
    find_variable_address,
    get_raw_variable,
)
from analyzer.capture.run.wrapped_calls import wrap_calls
from analyzer.capture.watch.user_lines import find_calling_line
from analyzer.model.contract.run_note import LOOP_SCOPE, op_types
from analyzer.model.graph.graph_index import Phase
from analyzer.tracing.parse.event_columns import MARKER_PREFIX

# Ops whose result shares the buffer of their input, which an earlier op made.
_ALIASES = op_types(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient "
    "Snapshot EnsureShape"
)


class Observations:
    """Gradients and scopes of a step."""

    def __init__(self) -> None:
        # Graph -> its symbolic gradients, and the tensors that share their buffers.
        self.gradients: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()

        # The calls that took gradients or updated variables while a graph was traced.
        self.phase_calls: WeakKeyDictionary[Any, list[tuple[Phase, int, int]]] = (
            WeakKeyDictionary()
        )

        # Ids of the variables with respect to which gradients were taken.
        self.trained: set[int] = set()

        # Name scope in the graph -> (kind, path); kind is layer, optimizer, metric or loss.
        self.scopes: dict[str, tuple[str, str]] = {}

        # Index of a marker in the trace -> addresses of the gradients at that time.
        self.eager_gradients: dict[int, tuple[int, ...]] = {}

        # Whether the step runs eagerly under a trace, which then gets markers.
        self.eager = False

        # Type, or type and bytes, of an eager op under a tape -> lines of the user's code that ran it;
        # path of a layer of Keras -> line that created it.
        self.source_lines: dict[str, set[str]] = {}
        self._marks = 0

    def find_phases(self) -> PhaseFinder:
        """Return a finder of the phases of ops."""
        return PhaseFinder(self.phase_calls, self.gradients, self.scopes)

    def restart(self) -> None:
        """Drop the eager gradients of a discarded trace."""
        self.eager_gradients.clear()
        self._marks = 0

    def add_line(
        self,
        op_type: str,
        _inputs: Any,
        _attrs: Any,
        outputs: Sequence[Any],
        *_: Any,
        graph: Any = None,
        **__: Any,
    ) -> None:
        """Record the user's line that runs an eager op, not one that a function's trace makes."""
        if graph is not None:
            return

        line = find_calling_line()
        op_type = getattr(op_type, "decode", lambda: op_type)()
        self.source_lines.setdefault(op_type, set()).add(line)

        for output in outputs:
            size = output.shape.num_elements() * output.dtype.size
            self.source_lines.setdefault(f"{op_type} {size}", set()).add(line)

    def find_only_lines(self) -> dict[str, str]:
        """Return the keys of ``source_lines`` that have one line of the user."""
        found = self.source_lines.items()
        return {name: min(lines) for name, lines in found if len(lines) == 1}

    def add_gradients(self, gradients: Any) -> None:
        """Record a structure of gradients, except None."""
        addresses: list[int | None] = []
        for leaf in tf.nest.flatten(gradients, expand_composites=False):
            tensor = leaf
            if isinstance(leaf, tf.IndexedSlices):
                tensor = leaf.values

            # a program's own loop accumulates gradients in it
            if isinstance(tensor, tf.Variable):
                addresses.append(find_variable_address(tensor) if self.eager else None)
            elif (
                tf.is_tensor(tensor)
                and hasattr(tensor, "graph")
                and not is_eager(tensor)
            ):
                names = self.gradients.setdefault(tensor.graph, {})
                while tensor.name not in names:
                    names[tensor.name] = True
                    if tensor.op.type not in _ALIASES:
                        break

                    tensor = tensor.op.inputs[tensor.value_index]
            else:
                addresses.append(find_address(tensor))

        found = [address for address in addresses if address is not None]
        if found and self.eager:
            self.eager_gradients[self._marks] = tuple(found)
            with tf.profiler.experimental.Trace(
                f"{MARKER_PREFIX}gradients",
                index=self._marks,
            ):
                self._marks += 1


@contextmanager
def observe_step() -> Iterator[Observations]:
    """Observe the steps that are traced or run in the block."""
    observed = Observations()

    def gradient(old: Any, *args: Any, **kwargs: Any) -> Any:
        with _mark_phase(observed, Phase.BACKWARD):
            result = old(*args, **kwargs)

        of_tape = isinstance(args[0], tf.GradientTape)
        sources = (*args[2 if of_tape else 1 :][:1], *kwargs.values())
        leaves = map(get_raw_variable, tf.nest.flatten(sources))
        observed.trained |= {id(leaf) for leaf in leaves if leaf is not None}
        observed.add_gradients(result)

        return result

    def apply(old: Any, optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        grads = list(grads)
        observed.add_gradients(grads)

        with _mark_phase(observed, Phase.UPDATE):
            return old(optimizer, grads, *args, **kwargs)

    def enter(old: Any, scope: Any) -> Any:
        result = old(scope)
        if closes_scope(scope) and scope.caller is not None:
            _observe_scope(observed, scope)

        return result

    def begin_tape(old: Any, tape: Any) -> Any:
        if observed.eager and tf.executing_eagerly():
            op_callbacks.add_op_callback(observed.add_line)

        return old(tape)

    def end_tape(old: Any, tape: Any, *args: Any) -> Any:
        with suppress(KeyError):  # it was not added
            op_callbacks.remove_op_callback(observed.add_line)

        return old(tape, *args)

    with ExitStack() as undo:
        for owner, name, call in (
            (keras.layers.Layer, "__new__", _create_layer),
            (keras.Model, "load_weights", _load),
            (keras.models, "load_model", _load),
            (tf.GradientTape, "__enter__", begin_tape),
            (tf.GradientTape, "__exit__", end_tape),
            (tf.GradientTape, "gradient", gradient),
            (tf, "gradients", gradient),
            (keras.optimizers.Optimizer, "apply", apply),
            (keras_name_scope, "__enter__", enter),
            (keras_name_scope, "__exit__", _leave_scope),
        ):
            undo.enter_context(wrap_calls(owner, name, call))

        yield observed


def _leave_scope(old: Any, scope: Any, *args: Any, **kwargs: Any) -> Any:
    """Leave a name scope, and end its mark in the trace."""
    mark = scope.__dict__.pop("analyzer_mark", None)
    if mark is not None:
        mark.__exit__(None, None, None)

    return old(scope, *args, **kwargs)


def _create_layer(old: Any, *args: Any, **kwargs: Any) -> Any:
    """Create a layer, and note the line; not in ``__init__``, whose signature Keras reads."""
    layer = old(*args, **kwargs)
    vars(layer)["analyzer_line"] = find_calling_line()

    return layer


def _load(old: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a model, or the weights of one, and mark its variables."""
    loaded = old(*args, **kwargs)
    model = args[0] if loaded is None else loaded

    for raw in map(get_raw_variable, model.variables):
        if raw is not None:  # as of another backend of Keras
            raw.analyzer_loaded = True

    return loaded


@contextmanager
def _mark_phase(observed: Observations, phase: Phase) -> Iterator[None]:
    """Mark a phase of an eager step in the trace, or note the ops that a graph gets in it."""
    if tf.executing_eagerly():
        mark = f"{MARKER_PREFIX}phase"
        with (
            tf.profiler.experimental.Trace(mark, phase=str(phase))
            if observed.eager
            else nullcontext()
        ):
            yield

        return

    # A Jacobian's loop is a function of its own.
    observed.source_lines[LOOP_SCOPE] = {find_calling_line()}
    graph = tf.compat.v1.get_default_graph()
    first = graph.version
    yield
    observed.phase_calls.setdefault(graph, []).append((phase, first, graph.version))


# The kinds of owners of Keras' name scopes.
_KINDS = (
    (keras.optimizers.Optimizer, "optimizer"),
    (keras.metrics.Metric, "metric"),
    (keras.losses.Loss, "loss"),
    (object, "layer"),
)


def _observe_scope(observed: Observations, scope: Any) -> None:
    """Record the owner of a Keras name scope, or mark a layer of an eager step in the trace."""
    caller = scope.caller
    path = str(getattr(caller, "path", None) or getattr(caller, "name", "") or "")
    kind = next(name for kind, name in _KINDS if isinstance(caller, kind))
    observed.source_lines[path] = {getattr(caller, "analyzer_line", "")}

    if not tf.executing_eagerly():
        if name := tf.get_current_name_scope():
            observed.scopes.setdefault(name, (kind, path))
    elif observed.eager and kind == "layer":
        scope.analyzer_mark = tf.profiler.experimental.Trace(
            f"{MARKER_PREFIX}layer",
            path=path,
        )
        scope.analyzer_mark.__enter__()

"""Data sets, tapes and models that a program made, by the line that made them."""

import weakref
from collections import Counter
from types import FrameType
from typing import Any, Literal

import tensorflow as tf

from analyzer.capture.graph.data_sizes import count_element_bytes
from analyzer.capture.graph.plain_graphs import count_bytes
from analyzer.capture.private_names import (
    PyDatasetEnqueuer,
    get_layers,
    holds_recording,
    is_persistent,
    peek_queue,
)
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.wrapped_calls import Arguments
from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.capture.watch.host_containers import count_host_bytes
from analyzer.capture.watch.user_lines import (
    find_calling_frame,
    format_code,
    format_line,
    is_own,
    list_codes,
)
from analyzer.model.contract.run_note import (
    DataStage,
    LiveModels,
    TapesNote,
)

_MAX_STAGES = 200  # stages in the note; a program with more makes them in a loop
_MIN_MODELS = 3  # models of one line that are reported
_MAX_INT32 = (1 << 31) - 1


class ProgramObjects:
    """Data sets, tapes and models, by the line that made them.

    The methods that add one get the result of a wrapped call, its arguments, and the calling frame.
    """

    def __init__(self) -> None:
        self.stages: dict[tuple[str, str], DataStage] = {}
        self._cached: weakref.WeakSet[Any] = weakref.WeakSet()  # made by ``cache``

        # By line, and for tapes whether they are persistent:
        self._asked: set[tuple[str, bool]] = set()  # a tape computed gradients
        self._tapes: dict[tuple[str, bool], weakref.WeakSet[Any]] = {}
        self._models: dict[str, weakref.WeakSet[Any]] = {}
        self._made: Counter[Any] = Counter()

    def add_stage(
        self,
        kind: Literal["shuffle", "cache", "prefetch"],
        made: Any,
        args: Arguments,
        frame: FrameType | None,
    ) -> None:
        """Note a stage that the user's own code made, except a cache in a file.

        A stage directly after a cache holds the elements of the cache.
        """
        dataset, *options = args
        where = ""
        if frame is not None and is_own(frame.f_code.co_filename):
            where = format_line(frame)

        in_file = kind == "cache" and any(
            isinstance(one, str) and one for one in options
        )

        is_cached = dataset in self._cached
        if not where or in_file or is_cached or len(self.stages) >= _MAX_STAGES:
            return

        elements = _count_elements(dataset)
        if kind == "cache":
            self._cached.add(made)
        else:
            numbers = [one for one in options if isinstance(one, int)]
            wanted = numbers[0] if numbers else -1  # TensorFlow chooses

            held = wanted
            if elements is not None:
                held = min(wanted, elements)

            elements = held if 0 <= held <= _MAX_INT32 else None

        self.stages[kind, where] = DataStage(
            kind=kind,
            where=where,
            elements=elements,
            element_bytes=count_element_bytes(dataset),
        )

    def add_queues(self) -> None:
        """Note the queues of batches that workers of a ``PyDataset`` fill."""
        for enqueuer in find_live_objects(PyDatasetEnqueuer):
            code = next(list_codes(type(enqueuer.py_dataset).__getitem__), None)
            batch = peek_queue(enqueuer)

            if code is None or batch is None:
                continue

            where = format_code(code)
            self.stages["queue", where] = DataStage(
                kind="queue",
                where=where,
                elements=enqueuer.future_queue.maxsize,
                element_bytes=count_host_bytes(batch),
            )

    def add_tape(self, tape: Any, frame: FrameType | None) -> None:
        """Note a new gradient tape."""
        own = find_calling_frame(frame)
        if own is not None:
            key = format_line(own), is_persistent(tape)
            self._tapes.setdefault(key, weakref.WeakSet()).add(tape)
            self._made[key] += 1

    def note_gradient(self, tape: Any) -> None:
        """Note that a tape computed gradients: no tape of its line is without use."""
        self._asked |= {key for key, tapes in self._tapes.items() if tape in tapes}

    def list_tapes(self, search: HolderSearch) -> list[TapesNote]:
        """Return the lines whose tapes still hold recordings."""
        rows = []
        for (where, persistent), tapes in self._tapes.items():
            alive = [tape for tape in tapes if holds_recording(tape)]
            if alive:
                rows.append(
                    TapesNote(
                        where=where,
                        persistent=persistent,
                        made=self._made[where, persistent],
                        alive=len(alive),
                        unused=0 if (where, persistent) in self._asked else len(alive),
                        holder=search.find_container(alive) if len(alive) > 1 else "",
                    )
                )

            del alive

        return rows

    def add_model(self, _: Any, args: Arguments, frame: FrameType | None) -> None:
        """Note a Keras model by the user's line that made it, except the inner model of another."""
        while frame is not None:
            code = frame.f_code
            if is_own(code.co_filename) and code.co_name != "__init__":
                break
            if code.co_name == "build":  # of a Sequential
                return

            frame = frame.f_back

        if frame is not None:
            where = format_line(frame)
            models = self._models.setdefault(where, weakref.WeakSet())
            self._made[where] += args[0] not in models
            models.add(args[0])

    def list_models(self, search: HolderSearch) -> list[LiveModels]:
        """Return the lines that made several models, except parts of a larger one."""
        inner: set[int] = set()
        for models in self._models.values():
            for model in models:
                inner.update(
                    id(part) for part in get_layers(model) if part is not model
                )

            model = None  # holds it no longer

        rows = []
        for where, models in self._models.items():
            alive = [model for model in models if id(model) not in inner]
            count = self._made[where] - len(models) + len(alive)

            if count >= _MIN_MODELS:
                rows.append(
                    LiveModels(
                        where=where,
                        made=count,
                        alive=len(alive),
                        size_bytes=sum(map(_count_model_bytes, alive)),
                        holder=search.find_container(alive),
                    )
                )

            del alive

        return rows


def _count_elements(dataset: Any) -> int | None:
    """Return the number of elements of a data set; None if unknown, infinite or too large."""
    try:
        count = int(dataset.cardinality())
    except (tf.errors.OpError, TypeError, ValueError):
        return None

    return count if 0 <= count <= _MAX_INT32 else None


def _count_model_bytes(model: Any) -> int:
    slots = getattr(getattr(model, "optimizer", None), "variables", None) or ()
    return sum(count_bytes(variable) for variable in (*model.variables, *slots))

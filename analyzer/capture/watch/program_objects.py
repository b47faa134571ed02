"""Objects that a program made or fills: data sets, tapes, models, containers of host data."""

import gc
import sys
import weakref
from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from types import FrameType
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from msgspec.structs import replace as replace_fields

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
from analyzer.capture.watch.user_lines import (
    find_calling_frame,
    format_code,
    format_line,
    is_own,
    list_codes,
)
from analyzer.model.contract.run_note import (
    DataStage,
    HeldTensors,
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
                        size_bytes=_count_own_bytes(alive),
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


def _count_own_bytes(models: list[Any]) -> int:
    """Return the bytes of the variables that only one of the models has, and its optimizer."""
    held: list[Any] = []
    for model in models:
        slots = getattr(getattr(model, "optimizer", None), "variables", None) or ()
        held += (*model.variables, *slots)

    counts = Counter(map(id, held))
    return sum(count_bytes(one) for one in held if counts[id(one)] == 1)


# Of a container's entry: smaller ones take a million steps to matter.
_MIN_ENTRY_BYTES = 4096
_MAX_FILLED = 1 << 16  # entries; C code never fills a longer list entry by entry
_MAX_PARTS = 16  # of an entry that are counted
_MAX_CONTAINERS = 32  # that are reported


def count_host_containers() -> dict[int, int]:
    """Return the length of each container with large entries, by identity."""
    return {id(one): len(one) for one in _list_containers()}


def find_grown_containers(
    before: Mapping[int, int],
    steps: int,
    search: HolderSearch,
) -> list[HeldTensors]:
    """Return the containers that got at least one entry a step, the largest growth first.

    A container that is not in ``before`` was made during the steps, such as a batch.
    """
    grown = []
    for container in _list_containers():
        added = len(container) - before.get(id(container), len(container))
        if added >= max(steps, 2):
            size_bytes = added * _count_entry_bytes(container)
            grown.append((size_bytes, added, container))

    grown.sort(key=lambda row: -row[0])
    del grown[_MAX_CONTAINERS:]

    holders = search.find_all([container for *_, container in grown])
    rows = []

    for size_bytes, added, container in grown:
        names = [one for one in holders.get(id(container), ()) if one.grows]
        for holder in names[:1]:
            rows.append(replace_fields(holder, count=added, size_bytes=size_bytes))

    return rows


def _list_containers() -> list[Any]:
    """Return the unbounded lists, dictionaries and deques with large entries."""
    found = []
    for one in gc.get_objects():
        is_container = type(one) in (list, dict) or (
            type(one) is deque and one.maxlen is None
        )
        if is_container and one and _count_entry_bytes(one) >= _MIN_ENTRY_BYTES:
            found.append(one)

    return found


def _count_entry_bytes(container: Any) -> int:
    """Return the bytes of the last entry; 0 if there is none."""
    if type(container) is list and len(container) <= _MAX_FILLED:
        # C code may still be filling it, and reading an empty entry crashes the process.
        entries = iter(gc.get_referents(container))
    elif type(container) is dict:
        entries = reversed(container.values())
    else:
        entries = reversed(container)

    try:
        return count_host_bytes(next(entries, None))
    except RuntimeError:  # another thread changes it
        return 0


def count_host_bytes(thing: Any, depth: int = 3) -> int:
    """Return the bytes of the arrays, bytes and texts in an entry of a container."""
    if isinstance(thing, np.ndarray):
        return int(thing.nbytes)
    if type(thing) in (bytes, bytearray, str):
        return sys.getsizeof(thing)

    if depth and type(thing) in (tuple, list, dict):
        parts = islice(gc.get_referents(thing), _MAX_PARTS)
        return sum(count_host_bytes(part, depth - 1) for part in parts)

    return 0

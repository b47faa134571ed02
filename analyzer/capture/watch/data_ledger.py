"""Data sets, tapes and models that a program made, by the line that made them."""

import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, Literal

import tensorflow as tf

from analyzer.capture.graph.input_pipeline import count_element_bytes
from analyzer.capture.graph.plain_graphs import count_bytes
from analyzer.capture.private_names import get_layers, holds_recording, is_persistent
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.user_lines import find_calling_frame, format_line, is_own
from analyzer.model.contract.watch_note import DataStage, LargeConstant, LiveModels, TapesNote

_MAX_STAGES: Final = 200  # stages in the note; a program with more makes them in a loop
_MIN_MODELS: Final = 3  # models of one line that are reported
_MAX_INT32: Final = (1 << 31) - 1


@dataclass
class _Made:
    """Objects that one line made."""

    count: int = 0
    alive: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def add(self, thing: Any) -> None:
        if thing not in self.alive:
            self.count += 1
            self.alive.add(thing)


class DataLedger:
    """Data sets, tapes and models, by the line that made them.

    The methods that add one get the result of a wrapped call, its arguments, and the calling frame.
    """

    def __init__(self) -> None:
        self.stages: dict[tuple[str, str], DataStage] = {}
        self.slices: dict[str, LargeConstant] = {}
        self.used_tapes: weakref.WeakSet[Any] = weakref.WeakSet()  # were asked for gradients
        self._tapes: dict[tuple[str, bool], _Made] = {}
        self._models: dict[str, _Made] = {}

    def add_stage(
        self,
        kind: Literal["shuffle", "cache", "prefetch"],
        _: Any,
        args: tuple[Any, ...],
        frame: FrameType | None,
    ) -> None:
        """Note a stage that the user's own code made, except a cache in a file."""
        dataset, *options = args
        where = _format_own_line(frame)
        in_file = kind == "cache" and any(isinstance(one, str) and one for one in options)
        if not where or in_file or len(self.stages) >= _MAX_STAGES:
            return
        elements = _count_elements(dataset)
        if kind != "cache":
            wanted = next((one for one in options if isinstance(one, int)), -1)
            held = wanted if elements is None else min(wanted, elements)
            elements = held if 0 <= held <= _MAX_INT32 else None  # None: TensorFlow chooses
        self.stages[kind, where] = DataStage(
            kind=kind, where=where, elements=elements, element_bytes=count_element_bytes(dataset)
        )

    def add_slices(self, _: Any, args: tuple[Any, ...], frame: FrameType | None) -> None:
        """Note a data set that the user's own code made from arrays."""
        where = _format_own_line(frame)
        leaves = tf.nest.flatten(args)
        sizes = [int(getattr(leaf, "nbytes", 0) or 0) for leaf in leaves]
        if not where or not sum(sizes):
            return
        largest = leaves[sizes.index(max(sizes))]
        self.slices[where] = LargeConstant(
            kind="slices",
            where=where,
            dtype=str(getattr(largest, "dtype", "")),
            shape=tuple(int(axis) for axis in largest.shape),
            size_bytes=sum(sizes),
            name=f"{len(leaves)} arrays" if len(leaves) > 1 else "an array",
        )

    def add_tape(self, tape: Any, frame: FrameType | None) -> None:
        """Note a new gradient tape."""
        own = find_calling_frame(frame)
        if own is not None:
            self._tapes.setdefault((format_line(own), is_persistent(tape)), _Made()).add(tape)

    def list_tapes(self, search: HolderSearch) -> list[TapesNote]:
        """Return the lines whose tapes still hold recordings."""
        rows = []
        for (where, persistent), record in self._tapes.items():
            alive = [tape for tape in record.alive if holds_recording(tape)]
            if alive:
                rows.append(
                    TapesNote(
                        where=where,
                        persistent=persistent,
                        made=record.count,
                        alive=len(alive),
                        unused=sum(tape not in self.used_tapes for tape in alive),
                        holder=search.find_container(alive[0]) if len(alive) > 1 else "",
                    )
                )
            del alive
        return rows

    def add_model(self, _: Any, args: tuple[Any, ...], frame: FrameType | None) -> None:
        """Note a Keras model by the user's line that made it, except the inner model of another."""
        while frame is not None and not (
            is_own(frame.f_code.co_filename) and frame.f_code.co_name != "__init__"
        ):
            if frame.f_code.co_name == "build":  # of a Sequential
                return
            frame = frame.f_back
        if frame is not None:
            self._models.setdefault(format_line(frame), _Made()).add(args[0])

    def list_models(self, search: HolderSearch) -> list[LiveModels]:
        """Return the lines that made several models, except parts of a larger one."""
        rows = []
        models = [one for made in self._models.values() for one in made.alive]
        inner = {id(part) for one in models for part in get_layers(one) if part is not one}
        del models
        for where, made in self._models.items():
            alive = [one for one in made.alive if id(one) not in inner]
            count = made.count - len(made.alive) + len(alive)
            if count >= _MIN_MODELS:
                rows.append(
                    LiveModels(
                        where=where,
                        made=count,
                        alive=len(alive),
                        size_bytes=sum(_count_model_bytes(model) for model in alive),
                        holder=search.find_container(alive[0]) if alive else "",
                    )
                )
            del alive
        return rows


def _format_own_line(frame: FrameType | None) -> str:
    """Return ``file:line`` of a frame of the user's code; "" for other frames."""
    return format_line(frame) if frame is not None and is_own(frame.f_code.co_filename) else ""


def _count_elements(dataset: Any) -> int | None:
    """Return the number of elements of a data set; None if unknown, infinite or too large."""
    try:
        count = int(dataset.cardinality())
    except (tf.errors.OpError, TypeError, ValueError):
        return None
    return count if 0 <= count <= _MAX_INT32 else None


def _count_model_bytes(model: Any) -> int:
    slots = getattr(getattr(model, "optimizer", None), "variables", None) or ()
    return sum(count_bytes(variable, 0) for variable in (*model.variables, *slots))

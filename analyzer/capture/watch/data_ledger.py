"""Stages of data sets, data sets made of arrays, tapes and models, as they are made."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.private_names import holds_recording, is_persistent
from analyzer.capture.run.source_frames import shorten_path
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.user_lines import find_calling_frame, is_own
from analyzer.model.contract.watch_note import DataStage, LargeConstant, LiveModels, TapesNote

_MOST: Final = 200
"""Stages and data sets that are noted; a program that makes more makes them in a loop."""

_FEWEST_MODELS: Final = 3


@dataclass
class _Tapes:
    persistent: bool
    made: int = 0
    refs: list[weakref.ref[Any]] = field(default_factory=list)


class DataLedger:
    """What was made, by the line that made it."""

    def __init__(self) -> None:
        self.stages: dict[tuple[str, str], DataStage] = {}
        self.slices: dict[str, LargeConstant] = {}
        self._tapes: dict[tuple[str, bool], _Tapes] = {}
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()
        self._models: dict[str, list[weakref.ref[Any]]] = {}

    def stage_made(
        self, kind: str, dataset: Any, arguments: tuple[Any, ...], frame: FrameType | None
    ) -> None:
        """Note a stage that the user's own code made.

        Args:
            kind: ``shuffle``, ``cache``, ``prefetch``, or ``slices`` for a source.
            dataset: The data set that the stage is put on; of a source, the source.
            arguments: The call's.
            frame: Who called.
        """
        if frame is None or not is_own(frame.f_code.co_filename) or len(self.stages) >= _MOST:
            return
        where = _line(frame)
        size_bytes = element_bytes(dataset.element_spec)
        if kind == "slices":
            self._slices_made(dataset, arguments, where)
            return
        if kind == "cache" and any(isinstance(one, str) and one for one in arguments):
            return  # in a file
        elements = next((one for one in arguments if isinstance(one, int)), None)
        if kind == "cache":
            elements = _cardinality(dataset)
        elif elements is not None and elements > 0 and (most := _cardinality(dataset)) is not None:
            elements = min(elements, most)
        self.stages[kind, where] = DataStage(
            kind=kind,  # type: ignore[arg-type]
            where=where,
            elements=elements if elements is None or 0 <= elements < 1 << 31 else None,
            element_bytes=size_bytes,
        )

    def _slices_made(self, dataset: Any, arguments: tuple[Any, ...], where: str) -> None:
        leaves = tf.nest.flatten(arguments)
        sizes = [int(getattr(leaf, "nbytes", 0) or 0) for leaf in leaves]
        if not sum(sizes):
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

    def tape_made(self, tape: Any, frame: FrameType | None) -> None:
        """Note a tape."""
        own = find_calling_frame(frame)
        if own is None:
            return
        record = self._tapes.setdefault(
            (_line(own), is_persistent(tape)), _Tapes(is_persistent(tape))
        )
        record.made += 1
        record.refs = [ref for ref in record.refs if ref() is not None]
        record.refs.append(weakref.ref(tape))

    def tape_used(self, tape: Any) -> None:
        """Note that a tape was asked for a gradient."""
        self._used.add(tape)

    def tapes(self, search: HolderSearch) -> list[TapesNote]:
        """Return the lines whose tapes still hold what they recorded."""
        rows = []
        for (where, persistent), record in self._tapes.items():
            alive = [
                tape for ref in record.refs if (tape := ref()) is not None and holds_recording(tape)
            ]
            if alive:
                rows.append(
                    TapesNote(
                        where=where,
                        persistent=persistent,
                        made=record.made,
                        alive=len(alive),
                        unused=sum(tape not in self._used for tape in alive),
                        holder=search.container_of(alive[0]) if len(alive) > 1 else "",
                    )
                )
            del alive
        return rows

    def model_made(self, model: Any, frame: FrameType | None) -> None:
        """Note a compiled Keras model."""
        own = find_calling_frame(frame)
        if own is None:
            return
        where = _line(own)
        known = [ref for ref in self._models.get(where, ()) if ref() is not None]
        if not any(ref() is model for ref in known):
            known.append(weakref.ref(model))
        self._models[where] = known

    def models(self, search: HolderSearch) -> list[LiveModels]:
        """Return the lines of which several models are alive."""
        rows = []
        for where, refs in self._models.items():
            alive = [model for ref in refs if (model := ref()) is not None]
            if len(alive) >= _FEWEST_MODELS:
                rows.append(
                    LiveModels(
                        where=where,
                        alive=len(alive),
                        size_bytes=sum(_model_bytes(model) for model in alive),
                        holder=search.container_of(alive[0]),
                    )
                )
            del alive
        return rows


def _line(frame: FrameType) -> str:
    return f"{shorten_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def element_bytes(spec: Any) -> int | None:
    """Return the bytes of one element of a data set; None where a shape is open."""
    total = 0
    for leaf in tf.nest.flatten(spec):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None or not dtype.is_numpy_compatible or dtype == tf.string:
            return None
        count = shape.num_elements()
        if count is None:
            return None
        total += count * dtype.size
    return total


def _cardinality(dataset: Any) -> int | None:
    try:
        count = int(dataset.cardinality())
    except (tf.errors.OpError, TypeError, ValueError):
        return None
    return count if 0 <= count < 1 << 31 else None


def _model_bytes(model: Any) -> int:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(getattr(optimizer, "variables", None) or ())]
    total = 0
    for variable in variables:
        dtype = tf.as_dtype(getattr(variable.dtype, "name", variable.dtype))
        count = 1
        for axis in variable.shape:
            count *= axis or 0
        total += count * dtype.size
    return total

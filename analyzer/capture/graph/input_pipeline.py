"""Batch shapes of ``tf.data`` iterators, and the bytes that their pipelines hold.

A pipeline is read from its Python objects; nothing of it runs. Functions of the user (``map``,
generators) and files may hold more, which is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.graph.plain_graphs import get_spec
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.model.contract.graph_note import TensorSpec

_ALIGNMENT_BYTES: Final = 64
"""A slice of an array shares its memory if it ends on it, else it is a copy (``MaybeCopySubSlice`` in
``tensor_slice_dataset_op.cc``)."""


def find_datasets(tensors: Iterable[Any]) -> dict[int, Any]:
    """Return the data sets of iterators by the ``id`` of the iterator's handle."""
    handles = {id(tensor) for tensor in tensors if tensor.dtype == tf.resource}
    iterators = find_live_objects(tf.data.Iterator) if handles else []
    found = {
        id(private.get_iterator_handle(one)): private.get_dataset(one)
        for one in iterators
    }

    return {
        handle: one
        for handle, one in found.items()
        if handle in handles and one is not None
    }


def _list_stages(dataset: Any) -> list[Any]:
    """Return a data set and the stages before it, as far as each has one input."""
    stages = []
    while dataset is not None:
        stages.append(dataset)
        dataset = private.get_input_dataset(dataset)

    return stages


def list_batch_specs(dataset: Any) -> list[TensorSpec]:
    """Return the components of a full batch: an open first axis is the batch's."""
    sizes = (private.get_batch_size(stage) for stage in _list_stages(dataset))
    size = next((tf.get_static_value(one) for one in sizes if one is not None), None)
    size, specs = -1 if size is None else int(size), []

    for leaf in tf.nest.flatten(dataset.element_spec):
        # Sparse and ragged components are variants.
        spec = (
            get_spec(leaf)
            if isinstance(leaf, tf.TensorSpec)
            else TensorSpec("variant", None)
        )
        if spec.shape and spec.shape[0] < 0:
            spec = TensorSpec(spec.dtype, (size, *spec.shape[1:]))

        specs.append(spec)

    return specs


def count_held_bytes(tensors: Iterable[Any]) -> dict[str, int]:
    """Return the bytes that the data sets of iterators hold when their buffers are full, by kind.

    ``arrays`` are those of ``from_tensor_slices``, which may share NumPy's memory. ``cache`` is full
    after the first epoch. ``AUTOTUNE`` counts as one batch.
    """
    held: Counter[str] = Counter()
    for dataset in find_datasets(tensors).values():
        stages = _list_stages(dataset)
        arrays = private.get_array_tensors(stages[-1])
        held["arrays"] += sum(get_spec(array).size_bytes or 0 for array in arrays)

        for at, stage in enumerate(stages):
            kind = type(stage).__name__.strip("_").removesuffix("Dataset").lower()
            file = private.get_cache_file(stage)
            if kind in ("shuffle", "prefetch", "cache") and (
                file is None or not file.numpy()
            ):
                is_slice = bool(arrays) and all(
                    one.element_spec == stage.element_spec
                    and "Map" not in type(one).__name__
                    for one in stages[at:]
                )
                element_bytes = count_element_bytes(stage, is_slice=is_slice)
                held[kind] += _count_elements(stage) * (element_bytes or 0)

    return {kind: size for kind, size in held.items() if size}


def _count_elements(stage: Any) -> int:
    """Return the elements in the buffer of a stage, which an infinite or unknown number fills."""
    limit, count = private.get_buffer_size(stage), int(stage.cardinality())
    if limit is None:
        return max(count, 0)

    return max(int(limit), 1) if count < 0 else min(max(int(limit), 1), count)


def count_element_bytes(stage: Any, *, is_slice: bool = False) -> int | None:
    """Return the bytes of one element, except shared slices of an array; None if a shape is open."""
    sizes = [spec.size_bytes for spec in list_batch_specs(stage)]
    own = [
        size
        for size in sizes
        if not is_slice or size is None or size % _ALIGNMENT_BYTES
    ]
    return None if None in own else sum(size or 0 for size in own)

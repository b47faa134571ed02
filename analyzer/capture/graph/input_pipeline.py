"""Batch shapes of ``tf.data`` iterators, read from their Python objects; nothing of them runs."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.graph.plain_graphs import get_spec
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.model.contract.graph_note import TensorSpec


def find_datasets(tensors: Iterable[Any]) -> dict[int, Any]:
    """Return the data sets of iterators by the ``id`` of the iterator's handle."""
    handles = {id(tensor) for tensor in tensors if tensor.dtype == tf.resource}
    iterators = find_live_objects(tf.data.Iterator) if handles else []
    found = {}

    for one in iterators:
        handle = id(private.get_iterator_handle(one))
        dataset = private.get_dataset(one)
        if handle in handles and dataset is not None:
            found[handle] = dataset

    return found


def list_batch_specs(dataset: Any) -> list[TensorSpec]:
    """Return the components of a full batch: an open first axis is the batch's."""
    size = None
    stage = dataset

    while stage is not None and size is None:
        size = private.get_batch_size(stage)
        stage = private.get_input_dataset(stage)

    size = tf.get_static_value(size) if size is not None else None
    size = -1 if size is None else int(size)
    specs = []

    for leaf in tf.nest.flatten(dataset.element_spec):
        spec = TensorSpec("variant", None)  # of sparse and ragged components
        if isinstance(leaf, tf.TensorSpec):
            spec = get_spec(leaf)

        if spec.shape and spec.shape[0] < 0:
            spec = TensorSpec(spec.dtype, (size, *spec.shape[1:]))

        specs.append(spec)

    return specs


def count_element_bytes(stage: Any) -> int | None:
    """Return the bytes of one element; None if a shape is open."""
    sizes = [spec.size_bytes for spec in list_batch_specs(stage)]
    if None in sizes:
        return None

    return sum(size or 0 for size in sizes)

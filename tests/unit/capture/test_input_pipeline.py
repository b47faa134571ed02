"""Batch shapes and held bytes of ``tf.data`` pipelines, read without running them."""

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253

from analyzer.capture.graph.input_pipeline import (
    count_held_bytes,
    list_batch_specs,
)

ROWS, ROW_BYTES = 300, 32 * 4


def slices():
    arrays = (np.zeros((ROWS, 32), np.float32), np.zeros(ROWS, np.int64))
    return tf.data.Dataset.from_tensor_slices(arrays)


def count_held(dataset):
    iterator = iter(dataset)
    return count_held_bytes(tf.nest.flatten(iterator, expand_composites=True))


PIPELINES = {
    "batched": lambda: slices().repeat().batch(16).prefetch(3),
    "mapped": lambda: slices().batch(16).map(lambda x, y: (x[:, :4], y)),
    "padded": lambda: slices().padded_batch(16, ([48], [])),
    "plain": lambda: slices(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_batch_has_the_shape_that_the_iterator_returns(name):
    dataset = PIPELINES[name]()
    found = [tuple(spec.shape) for spec in list_batch_specs(dataset)]
    assert found == [tuple(tensor.shape) for tensor in next(iter(dataset))]


def test_the_buffers_of_a_pipeline_count_when_they_are_full():
    arrays = ROWS * (ROW_BYTES + 8)
    held = count_held(PIPELINES["batched"]())
    assert held == {"arrays": arrays, "prefetch": 3 * 16 * (ROW_BYTES + 8)}
    # A shuffled slice shares its row with the array, but an element of 8 bytes is a copy.
    assert count_held(slices().shuffle(100)) == {"arrays": arrays, "shuffle": 100 * 8}
    assert count_held(slices().shuffle(1000))["shuffle"] == ROWS * 8
    mapped = slices().map(lambda x, y: (2 * x, y))
    assert count_held(mapped.shuffle(100))["shuffle"] == 100 * (ROW_BYTES + 8)
    assert count_held(mapped.cache())["cache"] == ROWS * (ROW_BYTES + 8)
    assert "cache" not in count_held(mapped.cache("a_file"))

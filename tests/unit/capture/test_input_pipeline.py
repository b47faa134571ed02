"""Batch shapes of ``tf.data`` pipelines, read without running them."""

import sys

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253

from analyzer.capture.graph.data_sizes import list_batch_specs
from analyzer.capture.watch.program_objects import ProgramObjects

ROWS = 300


def slices():
    arrays = (np.zeros((ROWS, 32), np.float32), np.zeros(ROWS, np.int64))
    return tf.data.Dataset.from_tensor_slices(arrays)


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


def test_a_stage_after_a_cache_holds_no_elements_of_its_own():
    objects = ProgramObjects()
    cached = slices().cache()
    frame = sys._getframe()
    objects.add_stage("cache", cached, (slices(),), frame)
    objects.add_stage("shuffle", cached.shuffle(8), (cached, 8), frame)
    assert [kind for kind, _ in objects.stages] == ["cache"]

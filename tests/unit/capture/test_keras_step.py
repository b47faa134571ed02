"""The data that a custom ``train_step`` gets, as ``fit(x)`` or ``fit(x, y)`` passes it."""

import keras  # noqa: TID253
import pytest
import tensorflow as tf  # noqa: TID253

from analyzer.capture.private_names import collect_executed_graphs
from analyzer.capture.targets.keras_step import make_model_program
from analyzer.model.contract.child_messages import CaptureOptions


class Whole(keras.Model):
    """Takes its data as one tensor, as many published GANs do."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def build(self, shape):
        self.dense.build(shape)
        super().build(shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, images):
        noise = tf.random.normal((tf.shape(images)[0], 8))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(tf.concat([noise, images], 0)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables))
        return {"loss": loss}


class FirstPart(Whole):
    def train_step(self, data):
        if isinstance(data, tuple):
            data = data[0]
        return super().train_step(data)


class TwoParts(Whole):
    def train_step(self, data):
        return super().train_step(data[0] + data[1])


class Unpacked(Whole):
    def train_step(self, data):
        x, _ = data
        return super().train_step(x)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (Whole, (4, 8)),
        (FirstPart, ((4, 8),)),
        (TwoParts, ((4, 8), (4, 2))),
        (Unpacked, ((4, 8), (4, 2))),
    ],
)
def test_a_train_step_gets_the_parts_that_it_takes(kind, shapes):
    model = kind()
    model.build((None, 8))
    model.compile("sgd")
    (iterator,) = make_model_program(model, CaptureOptions(batch_size=4)).traced_args
    found = tf.nest.map_structure(lambda spec: tuple(spec.shape), iterator.element_spec)
    assert found == shapes


def test_the_graphs_of_a_block_are_collected_and_no_later_ones() -> None:
    graphs: list[object] = []
    double = tf.function(lambda x: x * 2)
    with collect_executed_graphs(graphs):
        double(tf.ones(3))
    assert graphs
    # WHEN a block ends THEN its graphs are gone, and later calls add none
    triple = tf.function(lambda x: x * 3)
    triple(tf.ones(3))
    later: list[object] = []
    with collect_executed_graphs(later):
        pass
    assert not later


@pytest.mark.tf
def test_recomputed_blocks_of_a_grown_sequential_model_give_its_outputs() -> None:
    """``Sequential.add`` connects all layers anew, so that each has several outputs."""
    import numpy as np

    from analyzer.capture.targets.recomputed_blocks import recompute_blocks

    model = keras.Sequential([keras.Input((4,))])
    for name in "abcd":
        model.add(keras.layers.Dense(4, name=name))

    recomputed = recompute_blocks(model, [["a", "b"], ["c", "d"]])

    examples = np.ones((2, 4), "float32")
    assert np.allclose(recomputed(examples), model(examples))
    assert len(recomputed.trainable_variables) == len(model.trainable_variables)

"""Remedies as changes of a model, or of what a step of the user's own makes."""

from __future__ import annotations

import warnings

import keras  # noqa: TID253
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253

from analyzer.capture.targets.model_changes import (
    apply_while_building,
    change_layers,
    check_step_remedy,
    rebuild,
)
from analyzer.capture.targets.recomputed_blocks import recompute_blocks
from analyzer.model.errors import TargetError


def test_optimizer_options_apply_in_a_custom_step() -> None:
    with apply_while_building("accumulate=4,ema=on,clip=on", "loop.py:step"):
        optimizer = keras.optimizers.SGD(0.1, clipvalue=2.0)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    assert optimizer.gradient_accumulation_steps == 4
    assert optimizer.use_ema
    assert optimizer.clipvalue is None
    assert optimizer.global_clipnorm == 1.0
    assert scaled.inner_optimizer.gradient_accumulation_steps == 4
    assert scaled.gradient_accumulation_steps is None
    assert keras.optimizers.SGD(0.1).gradient_accumulation_steps is None


def test_custom_step_without_keras_optimizer_is_refused() -> None:
    with pytest.raises(TargetError, match="gradient_accumulation_steps"):
        with apply_while_building("accumulate=4", "loop.py:step"):
            pass


@pytest.mark.parametrize(
    "remedy",
    ["freeze=all-but-last", "lora=8", "quantize=int8", "recompute=a>b", "ema=off", "clip=off"],
)
def test_remedy_that_needs_the_model_is_refused_for_a_custom_step(remedy: str) -> None:
    with pytest.raises(TargetError, match=r"needs the model, and .* is a custom step"):
        check_step_remedy(remedy, "loop.py:step")
    check_step_remedy("accumulate=4,ema=on,clip=on", "loop.py:step")


def make_dense() -> keras.Sequential:
    parts = [keras.Input((40,)), keras.layers.Dense(30), keras.layers.LayerNormalization()]
    return keras.Sequential([*parts, keras.layers.Dense(20)])


def test_low_rank_updates_and_biases_are_trained() -> None:
    model = make_dense()
    change_layers(model, "lora=4")
    shapes = sorted(tuple(variable.shape) for variable in model.trainable_variables)
    assert shapes == [(4, 20), (4, 30), (20,), (30,), (30, 4), (40, 4)]
    bare = keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization()])
    with pytest.raises(TargetError, match="has enable_lora"):
        change_layers(bare, "lora=4")


def test_weights_are_quantized() -> None:
    model = make_dense()
    change_layers(model, "quantize=int8")
    assert [layer.kernel.dtype for layer in model.layers[::2]] == ["int8", "int8"]


class Blocks(keras.Sequential):  # type: ignore[misc]
    """Tokens to a block of two layers, as a language model names its blocks to Keras' GPTQ."""

    def get_quantization_layer_structure(self, mode: str) -> dict[str, list[keras.Layer]]:
        return {"pre_block_layers": [self.layers[0]], "sequential_blocks": self.layers[1:]}


def make_blocks() -> Blocks:
    parts = [keras.layers.Embedding(50, 32), keras.layers.Dense(64), keras.layers.Dense(48)]
    return Blocks([keras.Input((8,), dtype="int32"), *parts])


@pytest.mark.tf
@pytest.mark.skipif(not hasattr(keras.quantizers, "GPTQConfig"), reason="an older Keras")
def test_gptq_leaves_the_weights_that_keras_leaves() -> None:
    quantized, changed = make_blocks(), make_blocks()
    tokens = np.arange(64) % 50
    config = keras.quantizers.GPTQConfig([tokens] * 4, str.split, num_samples=2, sequence_length=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about layers without weights to quantize
        quantized.quantize("gptq", config=config)
    change_layers(changed, "quantize=gptq")
    found, expected = (
        sorted((one.dtype, tuple(one.shape)) for one in model.variables)
        for model in (changed, quantized)
    )
    assert found == expected
    assert changed(np.zeros((1, 8), "int32")).shape == (1, 8, 48)
    with pytest.raises(TargetError, match="names no blocks to quantize"):
        change_layers(make_dense(), "quantize=gptq")


def make_two_heads(width: int) -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(2 * width, 3, padding="same", activation="relu")(inputs)
    x = keras.layers.Add()([x, keras.layers.Conv2D(2 * width, 1)(x)])
    x = keras.layers.Dense(width)(keras.layers.GlobalAveragePooling2D()(x))
    classes = keras.layers.Softmax()(keras.layers.Dense(10)(x))
    return keras.Model(inputs, [classes, keras.layers.Dense(4, activation="tanh")(x)])


def test_fewer_units_are_those_of_a_narrower_model() -> None:
    found, expected = (
        [tuple(one.shape) for one in model.variables]
        for model in (rebuild(make_two_heads(8), "units=0.5"), make_two_heads(4))
    )
    assert found == expected
    bare = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(TargetError, match="no layer before the last"):
        rebuild(bare, "units=0.5")


class Penalized(keras.Model):  # type: ignore[misc]
    """A model with a training step of its own."""

    def train_step(self, data: object) -> dict[str, object]:
        """Train on nothing."""
        return {}


def test_model_with_own_train_step_is_not_rebuilt() -> None:
    """A model rebuilt from its layers would lose its own training step."""
    numbers = keras.Input((4,))
    model = Penalized(numbers, keras.layers.Dense(2, name="a")(numbers))
    with pytest.raises(TargetError, match="train_step of its own"):
        rebuild(model, "recompute=a>a")


def test_block_is_recomputed_after_the_next_block_has_its_gradients() -> None:
    """What was computed again for weights is else held while the next block is computed."""
    numbers = keras.Input((8,))
    x = numbers
    for name in ("a", "b", "c"):
        x = keras.layers.Dense(8, activation="gelu", name=name)(x)
    model = keras.Model(numbers, x)
    again = recompute_blocks(model, [["a", "a"], ["b", "b"], ["c", "c"]])

    def step(network: keras.Model) -> tf.types.experimental.ConcreteFunction:
        def gradients(batch: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(network(batch, training=True) ** 2)
            return list(tape.gradient(loss, model.trainable_variables))

        return tf.function(gradients).get_concrete_function(tf.zeros((4, 8)))

    stepped = step(again)
    waits = [
        {maker.type for maker in op.control_inputs}
        for op in stepped.graph.get_operations()
        if op.type == "Identity" and op.control_inputs
    ]
    assert waits.count({"BiasAddGrad", "MatMul"}) == 3
    batch = tf.random.normal((4, 8))
    for one, other in zip(step(model)(batch), stepped(batch), strict=True):
        assert float(tf.reduce_max(tf.abs(one - other))) < 1e-5

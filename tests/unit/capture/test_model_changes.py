"""Remedies as changes of a model, or of what a step of the user's own makes."""

from __future__ import annotations

import warnings

import keras  # noqa: TID253
import numpy as np
import pytest

from analyzer.capture.targets.model_changes import (
    apply_while_building,
    change_layers,
)
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


def make_dense() -> keras.Sequential:
    parts = [
        keras.Input((40,)),
        keras.layers.Dense(30),
        keras.layers.LayerNormalization(),
    ]
    return keras.Sequential([*parts, keras.layers.Dense(20)])


class Blocks(keras.Sequential):  # type: ignore[misc]
    """Tokens to a block of two layers, as a language model names its blocks to Keras' GPTQ."""

    def get_quantization_layer_structure(
        self, mode: str
    ) -> dict[str, list[keras.Layer]]:
        return {
            "pre_block_layers": [self.layers[0]],
            "sequential_blocks": self.layers[1:],
        }


def make_blocks() -> Blocks:
    parts = [
        keras.layers.Embedding(50, 32),
        keras.layers.Dense(64),
        keras.layers.Dense(48),
    ]
    return Blocks([keras.Input((8,), dtype="int32"), *parts])


@pytest.mark.tf
@pytest.mark.skipif(
    not hasattr(keras.quantizers, "GPTQConfig"), reason="an older Keras"
)
def test_gptq_leaves_the_weights_that_keras_leaves() -> None:
    quantized, changed = make_blocks(), make_blocks()
    tokens = np.arange(64) % 50
    config = keras.quantizers.GPTQConfig(
        [tokens] * 4, str.split, num_samples=2, sequence_length=8
    )
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

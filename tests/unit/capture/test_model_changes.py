"""Remedies as changes of what a step of the user's own makes."""

import keras  # noqa: TID253

from analyzer.capture.targets.model_changes import apply_while_building


def test_gradients_are_accumulated_in_a_custom_step() -> None:
    with apply_while_building("accumulate=4", "loop.py:step"):
        optimizer = keras.optimizers.SGD(0.1, clipvalue=2.0)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    assert optimizer.gradient_accumulation_steps == 4
    assert optimizer.clipvalue == 2.0
    assert scaled.inner_optimizer.gradient_accumulation_steps == 4
    assert scaled.gradient_accumulation_steps is None
    assert keras.optimizers.SGD(0.1).gradient_accumulation_steps is None

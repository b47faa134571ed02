"""Remedies as changes of a model, or of what a step of the user's own makes."""

from __future__ import annotations

import keras  # noqa: TID253
import pytest

from analyzer.capture.remedies.model_changes import around_making, check_of_step, rebuilt
from analyzer.errors import TargetError


def test_an_optimizer_made_in_a_step_of_ones_own_is_made_with_what_is_asked() -> None:
    with around_making("accumulate=4,ema=on,clip=on", "loop.py:step"):
        optimizer = keras.optimizers.SGD(0.1, clipvalue=2.0)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    assert optimizer.gradient_accumulation_steps == 4
    assert optimizer.use_ema
    assert optimizer.clipvalue is None
    assert optimizer.global_clipnorm == 1.0
    assert scaled.inner_optimizer.gradient_accumulation_steps == 4
    assert scaled.gradient_accumulation_steps is None
    assert keras.optimizers.SGD(0.1).gradient_accumulation_steps is None


def test_a_step_without_an_optimizer_of_keras_says_so() -> None:
    with pytest.raises(TargetError, match="gradient_accumulation_steps"):
        with around_making("accumulate=4", "loop.py:step"):
            pass


@pytest.mark.parametrize("remedy", ["freeze=all-but-last", "recompute=a>b", "ema=off", "clip=off"])
def test_what_needs_the_model_is_refused_for_a_step_of_ones_own(remedy: str) -> None:
    with pytest.raises(TargetError, match="where the target is the model itself"):
        check_of_step(remedy, "loop.py:step")
    check_of_step("accumulate=4,ema=on,clip=on", "loop.py:step")


class Penalized(keras.Model):  # type: ignore[misc]
    """A model with a training step of its own."""

    def train_step(self, data: object) -> dict[str, object]:
        """Train on nothing."""
        return {}


def test_a_model_with_a_step_of_its_own_is_not_put_together_anew() -> None:
    """What is put together anew of its layers would be trained by another step."""
    numbers = keras.Input((4,))
    model = Penalized(numbers, keras.layers.Dense(2, name="a")(numbers))
    with pytest.raises(TargetError, match="train_step of its own"):
        rebuilt(model, "recompute=a>a")

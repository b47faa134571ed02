"""Addresses of tensors that have none, which TensorFlow does not survive being asked for."""

import pytest

tf = pytest.importorskip("tensorflow")

from analyzer.capture.run.step_variables import find_address  # noqa: E402


def test_strings_have_no_address() -> None:
    assert find_address(tf.constant(["a", "b"])) is None
    assert (
        find_address(
            tf.raw_ops.EmptyTensorList(
                element_shape=-1, max_num_elements=-1, element_dtype=tf.float32
            )
        )
        is None
    )
    assert find_address(tf.ones((64,))) is not None

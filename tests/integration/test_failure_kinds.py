"""The kind of a failed step reaches the parent process as a typed value."""

from pathlib import Path

import pytest
from simulated_cards import NEEDS_CARDS

from analyzer.capture.process.launch import capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.child_messages import CaptureKind, CaptureOptions
from analyzer.model.contract.run_note import read_run_file
from analyzer.model.errors import AnalyzerError, FailureKind
from analyzer.tracing.parse.run_folder import RUN_FILE

ON_CARD = NEEDS_CARDS
STEPS = """
import tensorflow as tf

def make_large():
    image = tf.Variable(tf.zeros([2, 8, 8, 1]))
    return tf.function(lambda: tf.reduce_sum(tf.image.resize(image, [40_000, 40_000])))

def make_reshaped():
    return tf.function(lambda: tf.reshape(tf.random.uniform([32, 4]), [tf.size([1, 2, 3]), -1, 7]))

def make_fixed():
    return tf.function(lambda x: x, input_signature=[tf.TensorSpec([8, 4])])
"""


def find_kind(
    folder: Path, name: str, kind: CaptureKind, options: CaptureOptions
) -> FailureKind:
    file = folder / "steps.py"
    file.write_text(STEPS)
    target = parse_target(f"{file}:{name}")
    try:
        run = capture(
            target,
            options,
            folder / name,
            force=True,
            kind=kind,
        )
    except AnalyzerError as error:
        return error.kind
    failure = read_run_file(run / RUN_FILE).error
    return failure.kind


def test_refused_shapes(tmp_path: Path) -> None:
    kind = find_kind(tmp_path, "make_reshaped", "sizes", CaptureOptions(steps=1))
    assert kind is FailureKind.INVALID_SHAPE


@pytest.mark.slow
def test_a_fixed_batch_size(tmp_path: Path) -> None:
    kind = find_kind(tmp_path, "make_fixed", "static", CaptureOptions(batch_size=4))
    assert kind is FailureKind.FIXED_SIZE


@ON_CARD
@pytest.mark.slow
def test_a_launch_with_more_than_2_31_elements(tmp_path: Path) -> None:
    kind = find_kind(
        tmp_path, "make_large", "sizes", CaptureOptions(steps=1, gpu="a100-80gb")
    )
    assert kind is FailureKind.TOO_LARGE


def test_a_program_that_xla_refuses() -> None:
    import tensorflow as tf

    from analyzer.capture.run.step_capture import describe_failure

    text = (
        "Failed to compute symbolic tile for d0: HloModule gemm_fusion, " + "x" * 3000
    )
    failure = describe_failure(tf.errors.InternalError(None, None, text))
    assert failure.kind is FailureKind.NOT_COMPILED
    assert len(failure.message) < 300

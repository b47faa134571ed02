"""The kind of a failed step, from TensorFlow's exception."""

from __future__ import annotations

import os
from typing import Final

import tensorflow as tf

from analyzer.capture.run.source_frames import clean_message, find_user_line
from analyzer.model.contract.run_note import Failure
from analyzer.model.errors import ExitCode, FailureKind

_NO_MEMORY_TO_TRY: Final = "RESOURCE_EXHAUSTED: Out of memory"
"""Reason that "No algorithm worked!" gives for each algorithm if none had memory for a trial."""

_PHANTOM_NO_MEMORY: Final = (
    "Failed to call DoRnn",  # cudnn_rnn_ops.cc: no memory for workspace or reserve space
    "No algorithm worked!",  # conv_ops_gpu.h
    "No valid config found",  # XLA's autotuner.cc
)
"""Errors that mean a lack of memory on a simulated card, whose libraries refuse nothing else."""

_TOO_LARGE: Final = ("2^31", "int32", "INT_MAX", "too many elements")
"""Words in TensorFlow's InvalidArgumentError if an op has more elements than an int counts."""


def classify_failure(failure: BaseException | None) -> FailureKind:
    """Return why TensorFlow or Keras raised an error.

    TensorFlow gives some reasons only as text; no other place reads that text.
    """
    if isinstance(failure, tf.errors.ResourceExhaustedError):
        return FailureKind.OUT_OF_MEMORY
    if isinstance(failure, SystemExit):
        return FailureKind.EXITED
    text = str(failure)
    if isinstance(failure, tf.errors.NotFoundError) and _NO_MEMORY_TO_TRY in text:
        return FailureKind.OUT_OF_MEMORY
    if "PHANTOM_CARDS" in os.environ and any(words in text for words in _PHANTOM_NO_MEMORY):
        return FailureKind.OUT_OF_MEMORY
    if isinstance(failure, tf.errors.InvalidArgumentError | ValueError):
        is_large = any(words in text for words in _TOO_LARGE)
        return FailureKind.TOO_LARGE if is_large else FailureKind.INVALID_SHAPE
    return FailureKind.OTHER


def describe_failure(failure: BaseException) -> Failure:
    """Return how a step failed, for the note."""
    kind = classify_failure(failure)
    name, message, code = type(failure).__name__, str(failure), ExitCode.BAD_INPUT
    where = None
    if isinstance(failure, KeyboardInterrupt):
        name, message, code = "Interrupted", "The run was interrupted.", ExitCode.INTERRUPTED
    elif isinstance(failure, SystemExit):
        message = f"The step called sys.exit({failure.code})."
    elif kind is FailureKind.OUT_OF_MEMORY:
        name, code = "ResourceExhaustedError", ExitCode.STEP_OUT_OF_MEMORY
    else:
        where = find_user_line(failure)
    return Failure(
        type=name, message=clean_message(message), exit_code=code, where=where, kind=kind
    )

"""Runs of a step at several sizes in one process: each ran, or its error."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from analyzer.capture.run.step_capture import Capturing, describe_failure
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.child_messages import SizeRun
from analyzer.model.contract.run_note import Failure
from analyzer.model.errors import FailureKind, StepOutOfMemory
from analyzer.simulated_card.card_environment import SHORT_POOL

_LONGEST_DETAIL = 200  # characters of an error

# Steps at a size: the order of ops differs between them, and so does the room that they need. They
# end after some seconds, but not before the steps of a capture.
_MOST_STEPS = 20
_LONGEST_S = 1.0


def answer_sizes(send: Callable[[SizeRun], None], pipe: Path, state: Capturing) -> None:
    """Answer for the size that has run, then for the sizes in the pipe if the batch axis is open.

    The parent writes one size after each answer, and closes the pipe at the end.
    """
    program = state.program
    error = _check_pool(state.error or _measure(program, state.wanted))

    if program.resize is None or not pipe.exists():
        send(_describe_run(error, is_open=False))
        return

    with pipe.open() as sizes:  # before the answer, after which the parent may close it
        send(_describe_run(error, is_open=True))
        for line in sizes:
            gc.collect()  # buffers of the size before
            error = _check_pool(_measure(program, state.wanted, int(line)))
            send(_describe_run(error, is_open=True))


def _check_pool(error: Failure | None) -> Failure | None:
    """Return the error of a size, or raise it if the card has more memory than the pool."""
    is_short = SHORT_POOL in os.environ
    if error is not None and is_short and error.kind is FailureKind.OUT_OF_MEMORY:
        raise StepOutOfMemory(error.message)

    return error


def _measure(program: Program, steps: int, size: int | None = None) -> Failure | None:
    """Run several steps, at another size if one is given; return the error, if any.

    The peak is that of all steps but the first, in which cuDNN's trials take what memory they find.
    """
    began_s = time.monotonic()
    try:
        if program.resize is not None and size is not None:
            program.call = program.resize(size)

        for number in range(_MOST_STEPS):
            if number >= steps and time.monotonic() - began_s > _LONGEST_S:
                break

            result = program.call()  # lives until the step ends
            tf.test.experimental.sync_devices()
            del result

            if number == 0:
                for card in _list_cards():
                    tf.config.experimental.reset_memory_stats(card)
    except Exception as failure:
        return describe_failure(failure)

    return None


def _list_cards() -> list[str]:
    return [
        f"GPU:{index}" for index in range(len(tf.config.list_logical_devices("GPU")))
    ]


def _describe_run(error: Failure | None, *, is_open: bool) -> SizeRun:
    """Return the answer of a run: the most memory of a card, or the error."""
    if error is not None:
        detail = error.message.partition("\n")[0][:_LONGEST_DETAIL]
        return SizeRun(kind=error.kind, detail=detail, is_open=is_open)

    uses = [tf.config.experimental.get_memory_info(card) for card in _list_cards()]
    return SizeRun(
        peak_bytes=max((use["peak"] for use in uses), default=0),
        fixed_bytes=max((use["current"] for use in uses), default=0),
        is_open=is_open,
    )

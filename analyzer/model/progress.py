"""The progress of a command: work reports its stage to the function that shows it, if there is one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Takes the stage of the work, and the share of this stage that is done, 0 to 1; None if unknown.
Listener = Callable[[str, float | None], None]

_listeners: list[Listener] = [lambda stage, share: None]


def report_stage(stage: str, share: float | None = None) -> None:
    """Report the stage of the work, and the share of it that is done, 0 to 1, if known."""
    _listeners[-1](stage, share)


@contextmanager
def listening(listener: Listener) -> Iterator[Listener]:
    """Let a function get the stages of the block, in all threads; yield the one that got them."""
    _listeners.append(listener)

    try:
        yield _listeners[-2]
    finally:
        _listeners.pop()

"""What the child that runs a script is asked: the script, how it is watched, where its folder is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from analyzer.model.contract.messages.capture_request import CaptureOptions

WATCH_VERSION: Final = 1

STEPS: Final = 5
"""Steps that are traced: two pairs of neighbours stay when the first and the last are left out."""

WARMUP: Final = 3
"""Steps before them: functions are traced, slots made, iterators filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """What the child that runs a script is told.

    Attributes:
        script: The script as the user wrote it.
        arguments: Its own arguments.
        folder: Where the run folder is made.
        steps, warmup: Steps to trace, and steps before them.
        options: The cards and threads.
        schema_version: Of this record.
    """

    script: str
    folder: str
    arguments: tuple[str, ...] = ()
    steps: int = STEPS
    warmup: int = WARMUP
    options: CaptureOptions = field(default_factory=CaptureOptions)
    schema_version: int = WATCH_VERSION

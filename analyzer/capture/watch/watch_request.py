"""What is asked of a watched program, and where it leaves what was seen. Needs no TensorFlow."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from analyzer.capture.targets.target_spec import CaptureOptions

STEPS: Final = 5
"""Steps that are traced: two pairs of neighbours stay when the first and the last are left out."""

WARMUP: Final = 3
"""Steps before them: functions are traced, slots made, iterators filled."""

UNTRACED_FILE: Final = "watch.json"
"""What was seen where no step was traced: a :class:`analyzer.contract.watch_note.WatchNote`."""

FAULT_FILE: Final = "watch.error"
"""Where the child tells what of ours went wrong: the script goes on without it."""

BEGUN_FILE: Final = "watch.begun"
"""Empty; there as soon as the script has imported TensorFlow."""

DUMP: Final = ".xla"
"""Folder that XLA leaves compiled modules in while the script runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """What the child that runs a script is told.

    Attributes:
        script: The script as the user wrote it.
        arguments: Its own arguments.
        folder: Where the run folder is made.
        steps, warmup: Steps to trace, and steps before them.
        options: The cards and threads.
    """

    script: str
    folder: str
    arguments: tuple[str, ...] = ()
    steps: int = STEPS
    warmup: int = WARMUP
    options: CaptureOptions = field(default_factory=CaptureOptions)

    def write(self, path: Path) -> None:
        """Write it where the child reads it."""
        path.write_text(json.dumps({**asdict(self), "options": self.options.to_json()}), "utf-8")

    @classmethod
    def read(cls, path: Path) -> WatchRequest:
        """Return what :meth:`write` wrote."""
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        values["options"] = CaptureOptions.from_json(values["options"])
        values["arguments"] = tuple(values["arguments"])
        return cls(**values)

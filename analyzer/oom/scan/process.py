"""State of one process of a log between two of its lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.log_records import LoggedCard, LoggedFailure, RefusalRun
from analyzer.oom.scan.patterns import find

_MOST_OPEN: Final = 16  # threads, and failures of one thread that wait for their dump
_LIBRARY_PATHS: Final = (
    *("site-packages", "dist-packages", "<frozen", "/lib/python", "\\lib\\", "\\Lib\\"),
)


@dataclass(slots=True)
class LogProcess:
    """The process that writes lines with one tag.

    ``waiting`` are failures whose dump may still come, by thread; ``current`` those whose dump is being
    read; ``latest`` is that of the thread that wrote last. ``error`` and ``component`` are the failures
    that the next lines may describe, ``component_name`` is its row. ``refusal`` may continue;
    ``refusals`` are the runs since the last failure. ``limit_line`` may start a block of figures.
    """

    tag: str
    waiting: dict[str, list[LoggedFailure]] = field(default_factory=dict)
    current: dict[str, LoggedFailure] = field(default_factory=dict)
    latest: LoggedFailure | None = None
    error: LoggedFailure | None = None
    node: str = ""
    frame: str = ""
    refusal: RefusalRun | None = None
    refusals: list[int] = field(default_factory=list)
    card: LoggedCard | None = None
    card_age: int = 0
    histogram_thread: str | None = None
    is_in_usage: bool = False
    is_in_buffers: bool = False
    no_algorithm_lines: int = 0
    has_kernel_line: bool = False
    kernel: str = ""
    limit_line: str = ""
    framework: str = ""
    component: LoggedFailure | None = None
    component_lines: int = 0
    component_name: str = ""
    memory_limit: Range | None = None
    limit_lines: int = 0

    def await_dump(self, thread: str, failure: LoggedFailure) -> None:
        """Expect a dump for a failure."""
        waiting = self.waiting.setdefault(thread, [])
        waiting.append(failure)
        del waiting[:-_MOST_OPEN]
        if len(self.waiting) > _MOST_OPEN:
            del self.waiting[next(iter(self.waiting))]
        self.select(thread, failure)
        if len(self.current) > _MOST_OPEN:
            del self.current[next(iter(self.current))]

    def select(self, thread: str, failure: LoggedFailure) -> None:
        """Give the next dump lines of a thread to a failure."""
        self.current[thread] = self.latest = failure

    def owner(self, thread: str) -> LoggedFailure | None:
        """Return the failure that a dump line of a thread belongs to."""
        return self.current.get(thread) if thread else self.latest

    def find_waiting(self, thread: str, allocator: str) -> LoggedFailure | None:
        """Return the latest failure of an allocator whose dump has not started."""
        for failure in reversed(self.waiting.get(thread, ())):
            if failure.dump.is_empty and failure.allocator in ("", allocator):
                return failure
        return None

    def close_dump(self, thread: str, failure: LoggedFailure) -> None:
        """End a dump; the next lines go to the thread's next failure without one."""
        waiting = self.waiting.get(thread, [])
        if failure in waiting:
            waiting.remove(failure)
        due = [other for other in waiting if other.dump.is_empty]
        if due:
            self.select(thread, due[-1])
        else:
            self.current.pop(thread, None)

    def note_frame(self, text: str) -> bool:
        """Remember a traceback frame of the user's code; return False if the line is no frame."""
        match = find("frame", text)
        if match is None:
            return False
        path = match["path"]
        if not any(part in path for part in _LIBRARY_PATHS) and not path.startswith("<"):
            self.frame = f"{path}:{match['line']}"
        return True

"""What is known of one process of a log between two of its lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from analyzer.oom.log_records import DriverRefusal, Mishap, SeenCard
from analyzer.oom.scan import wordings

_MOST_OPEN: Final = 16  # threads whose messages are followed, and unfinished messages of each
_LIBRARY_PATHS: Final = (
    "site-packages",
    "dist-packages",
    "<frozen",
    "/lib/python",
    "\\lib\\",
    "\\Lib\\",
)


@dataclass(slots=True)
class LogProcess:
    """The process behind one tag of a log.

    Attributes:
        dumping: Failures whose dump may still come, by thread, the latest last.
        current: The failure that takes a dump's lines, by thread.
        latest: The same, of the thread that wrote last.
        error: The failure whose error text was read last: what follows belongs to it.
        node: The op that a text named before the error itself.
        frame: The user's own file and line that a traceback named last.
        refusal: The run of refusals that may go on.
        refusals: Numbers of the runs since the last failure.
        card: The card that is being described, and lines since it was named.
        is_in_histogram: Whether rows of sizes may come.
        histogram_thread: The thread whose rows they are.
        is_in_usage: Whether rows of nodes may come.
        is_in_buffers: Whether XLA's list of buffers may go on.
        has_no_algorithm: Lines left in which a request that failed is a convolution's.
        is_kernel_told: Whether a kernel's own line said that no algorithm worked, and no size followed.
        kernel: File and line of that kernel.
        limit_line: A bare line "Limit: ..." just before, which may begin a block of figures.
    """

    tag: str
    dumping: dict[str, list[Mishap]] = field(default_factory=dict)
    current: dict[str, Mishap] = field(default_factory=dict)
    latest: Mishap | None = None
    error: Mishap | None = None
    node: str = ""
    frame: str = ""
    refusal: DriverRefusal | None = None
    refusals: list[int] = field(default_factory=list)
    card: SeenCard | None = None
    card_age: int = 0
    is_in_histogram: bool = False
    histogram_thread: str = ""
    is_in_usage: bool = False
    is_in_buffers: bool = False
    has_no_algorithm: int = 0
    is_kernel_told: bool = False
    kernel: str = ""
    limit_line: str = ""

    def await_dump(self, thread: str, mishap: Mishap) -> None:
        """Note that a dump may follow for a failure."""
        waiting = self.dumping.setdefault(thread, [])
        waiting.append(mishap)
        del waiting[:-_MOST_OPEN]
        if len(self.dumping) > _MOST_OPEN:
            del self.dumping[next(iter(self.dumping))]
        self.current[thread] = mishap
        if len(self.current) > _MOST_OPEN:
            del self.current[next(iter(self.current))]
        self.latest = mishap

    def taker(self, thread: str) -> Mishap | None:
        """Return the failure that a line of a dump belongs to."""
        if thread:
            return self.current.get(thread)
        return self.latest

    def waiting_for(self, thread: str, allocator: str) -> Mishap | None:
        """Return the failure of an allocator whose dump has not begun."""
        for mishap in reversed(self.dumping.get(thread, ())):
            if mishap.dump.is_empty and mishap.allocator in ("", allocator):
                return mishap
        return None

    def close_dump(self, thread: str, mishap: Mishap) -> None:
        """Note that a dump is whole; a next failure of the thread whose dump is due takes its place."""
        waiting = self.dumping.get(thread, [])
        if mishap in waiting:
            waiting.remove(mishap)
        due = [other for other in waiting if other.dump.is_empty]
        if due:
            self.current[thread] = due[-1]
            self.latest = due[-1]
        else:
            self.current.pop(thread, None)

    def note_frame(self, text: str) -> bool:
        """Note a line of a traceback; False where it is none."""
        match = wordings.FRAME.match(text)
        if match is None:
            return False
        path = match[1]
        if not any(part in path for part in _LIBRARY_PATHS) and not path.startswith("<"):
            self.frame = f"{path}:{match[2]}"
        return True

"""What the system says of host memory: how much a process may have, and whom it ended for want of it.

Linux counts the processes that it ended because memory ran out: for the whole machine in
``/proc/vmstat``, for a control group (a container, a job's limit) in ``memory.events`` or, in version
1, ``memory.oom_control``. Elsewhere nothing is known.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COUNT: Final = re.compile(r"^oom_kill\s+(\d+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_EVENTS: Final = ("memory.events", "memory.oom_control")
_LIMITS: Final = ("memory.max", "memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The system's word on host memory at one time.

    Attributes:
        kills: Processes that it ended for want of memory, so far.
        limit_bytes: What a process may have: the machine's memory or its group's limit; None where
            not known.
    """

    kills: int
    limit_bytes: int | None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return what the system says now.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    groups = list(_groups(root))
    events = [root / "proc/vmstat", *(group / name for group in groups for name in _EVENTS)]
    kills = sum(int(count) for file in events for count in _COUNT.findall(_read(file)))
    limits = [1024 * int(kib) for kib in _TOTAL.findall(_read(root / "proc/meminfo"))]
    for group in groups:
        for name in _LIMITS:
            with contextlib.suppress(ValueError):  # "max", or no such file
                limits.append(int(_read(group / name)))
    return HostMemory(kills, min(limits) if limits else None)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that this process and its children are in."""
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or "memory" in controllers.split(","):
            top = mounted if number == "0" else mounted / "memory"
            inner = top / path.lstrip("/")
            # In a container the path may be the host's, and what is mounted the group itself.
            while inner != top and not inner.is_dir():
                inner = inner.parent
            while True:  # a limit further up holds too
                yield inner
                if inner == top:
                    break
                inner = inner.parent


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""

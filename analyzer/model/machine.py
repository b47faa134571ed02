"""Cores and memory of this machine, with the calls that its system has."""

import os


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def read_memory_bytes(pages: str = "SC_PHYS_PAGES") -> int:
    """Return the machine's memory, or with ``SC_AVPHYS_PAGES`` its free part; 0 if it is unknown."""
    if hasattr(os, "sysconf") and pages in getattr(os, "sysconf_names", ()):
        return int(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE"))
    return 0  # on Windows, and for the free part on macOS

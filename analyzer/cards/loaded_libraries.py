"""Which of CUDA's libraries a process has loaded, and what it was started with: Linux' ``/proc``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_LIBRARY: Final = re.compile(
    r"/lib(cuda|cudart|cublasLt|cublas|cudnn|cufft|cusolver|cusparse|curand|nccl|nvinfer)"
    r"(?:_\w+)?\.so[.\d]*$"
)
_MOST_BYTES: Final = 8 << 20
"""Of a process' list of mapped files, and of its environment: Linux keeps less."""


def libraries_of(pid: int | str = "self") -> tuple[str, ...]:
    """Return the CUDA libraries that a process has loaded, by their short names.

    Args:
        pid: The process; this one by default.

    Returns:
        None of them where the system does not show it.
    """
    found = set()
    for line in _content(pid, "maps").splitlines():
        if match := _LIBRARY.search(line.decode("utf-8", "replace").rstrip()):
            found.add(match[1])
    return tuple(sorted(found))


def environment_of(pid: int) -> dict[str, str] | None:
    """Return the variables that a process was started with; None where the system does not show them."""
    content = _content(pid, "environ")
    if not content:
        return None
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in content.split(b"\0"))
    return {name: value for name, mark, value in pairs if mark}


def _content(pid: int | str, name: str) -> bytes:
    try:
        with (Path("/proc") / str(pid) / name).open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""

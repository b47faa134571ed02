"""What the user set of ``XLA_FLAGS``, as a card's compiler takes it over."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Final

_OURS: Final = ("xla_dump_", "xla_gpu_cuda_data_dir", "xla_hlo_profile")
"""Flags that say where XLA writes and where CUDA lies: the compiler's child has its own."""


def spelled_out(text: str) -> str:
    """Return flags as text: XLA takes what begins with no dash for the name of a file of flags."""
    text = text.strip()
    if text and not text.startswith("-"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return " ".join(Path(text).read_text("utf-8").split())
        return ""  # XLA ignores a file that is not there
    return text


def with_path(flag: str, path: Path) -> str:
    """Return a flag that names a path, quoted where XLA would take it apart (at white space)."""
    text = str(path)
    if not any(mark.isspace() or mark in "\"'\\" for mark in text):
        return f"{flag}={text}"
    return f'{flag}="' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def taken_over(text: str) -> tuple[str, ...]:
    """Return the flags in ``text`` that decide what a card's compiler makes, in order."""
    try:
        flags = shlex.split(spelled_out(text))
    except ValueError:
        flags = spelled_out(text).split()
    return tuple(
        flag for flag in flags if flag.startswith("-") and not flag.lstrip("-").startswith(_OURS)
    )

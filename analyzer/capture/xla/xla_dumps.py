"""The compiled modules that XLA leaves in a folder, beside much that we have no use for.

XLA reads ``XLA_FLAGS`` once, at the first compilation of a process; nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

from analyzer.cards.xla_compiler import path_flag, read_flags
from analyzer.tracing.parse.hloproto import Hlo

_OURS: Final = re.compile(r'\s*--xla_dump_to=(?:"(?:[^"\\]|\\.)*"|\S*)\s+--xla_dump_hlo_as_proto$')


def add_dump_flags(folder: Path, flags: str = "") -> str:
    """Return ``XLA_FLAGS`` with which XLA leaves each compiled module and its plan in ``folder``.

    Args:
        folder: Where to; made by XLA.
        flags: What the user set.
    """
    ours = f"{path_flag('--xla_dump_to', folder)} --xla_dump_hlo_as_proto"
    return f"{read_flags(flags)} {ours}".strip()


def remove_dump_flags(flags: str) -> str:
    """Return what the user set of ``XLA_FLAGS``: without what ``add_dump_flags`` added."""
    return _OURS.sub("", flags).strip()


def read_dumped_plan(dump: Path, function: str) -> tuple[bytes, str]:
    """Return the last compiled module of a function that XLA left, and the device it is for.

    Args:
        dump: The folder that ``add_dump_flags`` named.
        function: The function's name.

    Returns:
        The module with its buffer assignment (HloProto) without literals, empty where there is none;
        and ``cpu`` or ``gpu``.
    """
    names = _compiled(dump, function)
    if not names:
        return b"", ""
    # "sm_7.5_gpu_after_optimizations" (``GpuCompiler``), "cpu_after_optimizations" (``CpuCompiler``)
    is_gpu = "gpu_after_optimizations" in names[-1].name
    return _without_literals(names[-1].read_bytes()), "gpu" if is_gpu else "cpu"


def count_dumps(dump: Path, function: str) -> int:
    """Return how often a function was compiled since the folder was empty."""
    return len(_compiled(dump, function))


def _compiled(dump: Path, function: str) -> list[Path]:
    return sorted(dump.glob(f"*.{_module_name(function)}*after_optimizations.hlo.pb"))


def empty(dump: Path) -> None:
    """Remove what lies in the folder."""
    for file in dump.iterdir() if dump.is_dir() else ():
        with contextlib.suppress(OSError):
            file.unlink()


def _module_name(function: str) -> str:
    """Return how the name of a function's compiled module begins (``XlaCompiler``: a letter first).

    A function that Python calls directly has its attributes in the name too.
    """
    return f"a_{function.strip('_')}__"


def _without_literals(content: bytes) -> bytes:
    proto = Hlo()
    proto.ParseFromString(content)
    return packed(proto)


def packed(proto: Any) -> bytes:
    """Return the fields that we read, and no others: constants' values least of all."""
    proto.DiscardUnknownFields()
    return bytes(proto.SerializeToString(deterministic=True))

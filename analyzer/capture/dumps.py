"""The compiled modules that XLA leaves in a folder, beside much that we have no use for.

XLA reads ``XLA_FLAGS`` once, at the first compilation of a process; nothing here imports TensorFlow.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from analyzer.parse.hloproto import Hlo


def dumping_flags(folder: Path, flags: str = "") -> str:
    """Return ``XLA_FLAGS`` with which XLA leaves each compiled module and its plan in ``folder``.

    Args:
        folder: Where to; made by XLA.
        flags: What the user set.
    """
    return f"{flags} --xla_dump_to={folder} --xla_dump_hlo_as_proto".strip()


def dumped_plan(dump: Path, function: str) -> bytes:
    """Return the last compiled module of a function that XLA left, and empty the folder.

    Args:
        dump: The folder that :func:`dumping_flags` named.
        function: The function's name.
    """
    content = b""
    names = sorted(dump.glob(f"*{_module_name(function)}*after_optimizations.hlo.pb"))
    if names:
        content = _without_literals(names[-1].read_bytes())
    for file in dump.iterdir() if dump.is_dir() else ():
        with contextlib.suppress(OSError):
            file.unlink()
    return content


def _module_name(function: str) -> str:
    """Return the stem of the module's name: XLA keeps letters, digits and ``_`` of ``a`` + name."""
    return function.strip("_")


def _without_literals(content: bytes) -> bytes:
    proto = Hlo()
    proto.ParseFromString(content)
    return packed(proto)


def packed(proto: Any) -> bytes:
    """Return the fields that we read, and no others: constants' values least of all."""
    proto.DiscardUnknownFields()
    return bytes(proto.SerializeToString(deterministic=True))

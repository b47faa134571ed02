"""Read the compiled modules that XLA dumps into a folder.

XLA reads ``XLA_FLAGS`` once, at the first compilation of a process; nothing here imports TensorFlow.
"""

import re
from pathlib import Path
from typing import Any

from analyzer.model.xla_flags import path_flag, read_flags
from analyzer.tracing.parse.buffer_plan import HloProto

_OURS = re.compile(
    r'\s*--xla_dump_to=(?:"(?:[^"\\]|\\.)*"|\S*)\s+--xla_dump_hlo_as_proto$'
)


def add_dump_flags(folder: Path, flags: str = "") -> str:
    """Return ``XLA_FLAGS`` that make XLA dump each compiled module and its plan into ``folder``."""
    ours = f"{path_flag('--xla_dump_to', folder)} --xla_dump_hlo_as_proto"
    return f"{read_flags(flags)} {ours}".strip()


def remove_dump_flags(flags: str) -> str:
    """Return ``XLA_FLAGS`` without the flags from ``add_dump_flags``."""
    return _OURS.sub("", flags).strip()


def read_dumped_plan(dump: Path, function: str) -> tuple[bytes, str]:
    """Return the last compiled module of a function, and its device (``cpu`` or ``gpu``).

    The module has its buffer assignment and no literals (HloProto); it is empty if there is none.
    """
    files = list_dumps(dump, function)
    if not files:
        return b"", ""

    # "sm_7.5_gpu_after_optimizations" (``GpuCompiler``), "cpu_after_optimizations" (``CpuCompiler``)
    platform = "gpu" if "gpu_after_optimizations" in files[-1].name else "cpu"
    module: Any = HloProto.FromString(files[-1].read_bytes())
    module.DiscardUnknownFields()  # above all, the values of constants

    return bytes(module.SerializeToString(deterministic=True)), platform


def list_dumps(dump: Path, function: str) -> list[Path]:
    """Return the dumped modules of a function, oldest first: one for each compilation."""
    return sorted(dump.glob(f"*.a_{function.strip('_')}__*after_optimizations.hlo.pb"))

"""Read the compiled modules that XLA dumps into a folder.

XLA reads ``XLA_FLAGS`` once, at the first compilation of a process; nothing here imports TensorFlow.
"""

from pathlib import Path
from typing import Any

from analyzer.model.xla_flags import path_flag, read_flags
from analyzer.tracing.parse.buffer_plan import HloProto


def add_dump_flags(folder: Path, flags: str) -> str:
    """Return ``XLA_FLAGS`` that make XLA dump each compiled module and its plan into ``folder``."""
    ours = f"{path_flag('--xla_dump_to', folder)} --xla_dump_hlo_as_proto"
    return f"{read_flags(flags)} {ours}".strip()


def read_dumped_plan(dump: Path, function: str) -> tuple[bytes, str, int]:
    """Return the last compiled module of a function, its device, and the number of its compilations.

    The device is ``cpu`` or ``gpu``. The module has its buffer assignment and no literals (HloProto);
    it is empty if there is none.
    """
    name = function.strip("_")
    files = sorted(
        dump.glob(f"*.a_{name}__*after_optimizations.hlo.pb")
    )  # oldest first
    if not files:
        return b"", "", 0

    # "sm_7.5_gpu_after_optimizations" (``GpuCompiler``), "cpu_after_optimizations" (``CpuCompiler``)
    platform = "gpu" if "gpu_after_optimizations" in files[-1].name else "cpu"
    module: Any = HloProto.FromString(files[-1].read_bytes())
    module.DiscardUnknownFields()  # above all, the values of constants

    return bytes(module.SerializeToString(deterministic=True)), platform, len(files)

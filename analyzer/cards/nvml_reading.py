"""The cards as the driver's management library (NVML) shows them: what ``nvidia-smi`` prints.

Read through the package ``nvidia-ml-py``, which opens ``libnvidia-ml.so.1``; no program is started and
no CUDA context is made, so that the reading itself takes nothing of a card.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from analyzer.model.contract.device_figures import NvmlCard, NvmlProcess, NvmlReading
from analyzer.model.errors import InputError

COMPUTE_MODES: Final = ("default", "exclusive thread", "prohibited", "exclusive process")
"""``nvmlComputeMode_t``, by number."""


def read_cards(own_pids: frozenset[int] = frozenset()) -> NvmlReading:
    """Return what the driver says of the machine's cards now.

    Args:
        own_pids: Numbers that this process has, in its own namespace and the host's.

    Raises:
        InputError: there is no driver, or it refuses; one line says which.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise InputError(
            f"There is no GPU that NVIDIA's driver knows of here: {_told(error)}."
        ) from None
    try:
        count = pynvml.nvmlDeviceGetCount()
        return NvmlReading(
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            cards=tuple(_card(pynvml, index, own_pids) for index in range(count)),
        )
    except pynvml.NVMLError as error:
        raise InputError(f"NVIDIA's driver cannot be asked: {_told(error)}.") from None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _told(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _card(nvml: Any, index: int, own_pids: frozenset[int]) -> NvmlCard:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    reserved: int | None = None
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    used = int(memory.used)
    with _unless_refused(nvml):
        apart = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        reserved, used = int(apart.reserved), int(apart.used)
    mode, is_partitioned = 0, False
    with _unless_refused(nvml):
        mode = int(nvml.nvmlDeviceGetComputeMode(handle))
    with _unless_refused(nvml):
        is_partitioned = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return NvmlCard(
        index=index,
        name=str(nvml.nvmlDeviceGetName(handle)),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        used_bytes=used,
        free_bytes=int(memory.free),
        reserved_bytes=reserved,
        compute_mode=COMPUTE_MODES[mode] if mode < len(COMPUTE_MODES) else str(mode),
        is_partitioned=is_partitioned,
        processes=_processes(nvml, handle, own_pids),
    )


def _processes(nvml: Any, handle: Any, own_pids: frozenset[int]) -> tuple[NvmlProcess, ...]:
    """Return a card's processes, each once: one that draws and computes is in both of NVML's lists."""
    found: dict[int, int | None] = {}
    for listed in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        with _unless_refused(nvml):
            for one in listed(handle):
                used = None if one.usedGpuMemory is None else int(one.usedGpuMemory)
                kept = found.get(int(one.pid))
                found[int(one.pid)] = used if kept is None else max(kept, used or 0)
    rows = [
        NvmlProcess(pid=pid, used_bytes=used, name=program_of(pid), is_own=pid in own_pids)
        for pid, used in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.used_bytes or 0), row.pid)))


@contextlib.contextmanager
def _unless_refused(nvml: Any) -> Iterator[None]:
    """Pass over what this driver, card or user's right does not give."""
    with contextlib.suppress(nvml.NVMLError):
        yield


def program_of(pid: int) -> str:
    """Return a process' program; empty where this system does not show it."""
    try:
        return (
            (Path("/proc") / str(pid) / "comm")
            .read_text(encoding="utf-8", errors="replace")
            .strip()
        )
    except OSError:
        return ""


def own_pids() -> frozenset[int]:
    """Return the numbers of this process: its own and, in a container, those outside that are shown."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    lines = (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return frozenset(int(number) for numbers in lines for number in numbers)

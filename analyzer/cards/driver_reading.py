"""Readings of NVML (``nvidia-ml-py``) and ``/proc`` about cards; they use no memory of a card."""

import contextlib
from pathlib import Path
from typing import Any, Final

from analyzer.model.contract.child_messages import NvmlCard, NvmlProcess, NvmlReading
from analyzer.model.errors import InputError

_MOST_BYTES: Final = 8 << 20  # of one file of /proc; Linux allows less


def read_cards(own_pids: frozenset[int] = frozenset()) -> NvmlReading:
    """Return the driver's figures of this machine's cards, or raise an InputError."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return NvmlReading(
            cards=tuple(_read_card(pynvml, index, own_pids) for index in range(count)),
        )
    except pynvml.NVMLError as error:
        raise InputError(f"NVIDIA's driver finds no GPU here: {error}.") from None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read_card(nvml: Any, index: int, own_pids: frozenset[int]) -> NvmlCard:
    """Return one card; a driver, card or user may lack the right to some of its figures."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    used, reserved = int(memory.used), None
    is_partitioned = False

    with contextlib.suppress(nvml.NVMLError):
        memory_v2 = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        reserved, used = int(memory_v2.reserved), int(memory_v2.used)

    with contextlib.suppress(nvml.NVMLError):
        is_partitioned = bool(nvml.nvmlDeviceGetMigMode(handle)[0])

    return NvmlCard(
        index=index,
        name=str(nvml.nvmlDeviceGetName(handle)),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        used_bytes=used,
        free_bytes=int(memory.free),
        reserved_bytes=reserved,
        is_partitioned=is_partitioned,
        processes=_read_processes(nvml, handle, own_pids),
    )


def _read_processes(
    nvml: Any, handle: Any, own_pids: frozenset[int]
) -> tuple[NvmlProcess, ...]:
    """Return the processes on a card; NVML lists a process twice if it draws and computes."""
    rows: dict[int, NvmlProcess] = {}
    for kind in ("Compute", "Graphics"):
        with contextlib.suppress(nvml.NVMLError):
            for one in getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle):
                pid = int(one.pid)
                sizes = [
                    one.usedGpuMemory,
                    rows[pid].used_bytes if pid in rows else None,
                ]
                rows[pid] = NvmlProcess(
                    pid=pid,
                    used_bytes=max(
                        (int(size) for size in sizes if size is not None), default=None
                    ),
                    name=_read_proc(pid, "comm").decode("utf-8", "replace").strip(),
                    is_own=pid in own_pids,
                )

    return tuple(
        sorted(rows.values(), key=lambda row: (-(row.used_bytes or 0), row.pid))
    )


def own_pids() -> frozenset[int]:
    """Return the ids of this process: its own and, in a container, the visible ones outside."""
    return frozenset(
        int(number)
        for line in _read_proc("self", "status").splitlines()
        if line.startswith(b"NSpid:")
        for number in line.split()[1:]
    )


def _read_proc(pid: int | str, name: str) -> bytes:
    try:
        with (Path("/proc") / str(pid) / name).open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""

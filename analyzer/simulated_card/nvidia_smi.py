"""``nvidia-smi`` for simulated cards: ``--query-gpu``, and a line for each card and process.

It runs as a program of its own, with the environment of the process on the cards, and needs only the
standard library. ``SIMULATED_CARD_USE`` names a file with rows of a process id and 16 numbers, the bytes
that the process uses on each card (``publish`` in ``native/runtime/cards.c``).
"""

import argparse
import contextlib
import os
import struct
import sys

_ROW = struct.Struct("<q16Q")
_MIB = 1 << 20
_UNKNOWN = "[N/A]"


def main(arguments: list[str]) -> int:
    """Print the answer to a query, or the cards and their processes; return the exit status."""
    parser = argparse.ArgumentParser("nvidia-smi", description=__doc__)
    parser.add_argument("--query-gpu", default="")
    parser.add_argument("--format", default="csv")
    options, _ = parser.parse_known_args(arguments)
    wanted = [name.strip() for name in options.query_gpu.split(",")]
    uses = _read_uses()

    if options.query_gpu and "noheader" not in options.format:
        units = [" [MiB]" if name.startswith("memory.") else "" for name in wanted]
        print(*(name + unit for name, unit in zip(wanted, units)), sep=", ")  # noqa: B905

    for index, text in enumerate(os.environ.get("SIMULATED_CARDS", "").split(";")):
        name, *figures = text.split(",")
        processes = {pid: sizes[index] for pid, *sizes in uses if sizes[index]}
        used = -(-sum(processes.values()) // _MIB)
        total = int(figures[-2]) // _MIB

        if options.query_gpu:
            unit = "" if "nounits" in options.format else " MiB"
            fields = _get_fields(index, name, used, total, unit)
            print(*(fields.get(one, _UNKNOWN) for one in wanted), sep=", ")
            continue

        print(f"GPU {index}: {name} (simulated), {used}MiB / {total}MiB")
        for pid, size in processes.items():
            print(f"  process {pid}: {size // _MIB}MiB")

    return 0


def _read_uses() -> list[tuple[int, ...]]:
    """Return the process and its bytes on each card for every living process."""
    rows: list[tuple[int, ...]] = []
    with contextlib.suppress(OSError, struct.error):
        with open(os.environ.get("SIMULATED_CARD_USE", ""), "rb") as file:
            rows = list(_ROW.iter_unpack(file.read()))

    return [row for row in rows if os.path.exists(f"/proc/{row[0]}")]


def _get_fields(
    index: int, name: str, used: int, total: int, unit: str
) -> dict[str, str]:
    """Return the fields of a query; others are not available."""
    return {
        "index": str(index),
        "name": name,
        "gpu_name": name,
        "uuid": f"GPU-73696d75-6c61-7400-0000-{index:012x}",
        "memory.total": f"{total}{unit}",
        "memory.used": f"{used}{unit}",
        "memory.free": f"{total - used}{unit}",
        "utilization.gpu": "0",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

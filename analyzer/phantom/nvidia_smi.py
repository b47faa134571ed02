"""``nvidia-smi`` for simulated cards: the table, ``-L``, and the common queries.

It runs as a program of its own, with the environment of the process on the cards, and needs only the
standard library. ``PHANTOM_USE`` names a file with rows of a process id and 16 numbers, the bytes that
the process uses on each card (``publish`` in ``native/runtime/cards.c``).
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import time
from dataclasses import dataclass

_ROW = struct.Struct("<q16Q")
_MIB = 1 << 20
_UNKNOWN = "[N/A]"
_DRIVER, _CUDA = "575.0.0", "12.9"


@dataclass
class _Card:
    index: int
    name: str
    total_bytes: int
    processes: dict[int, int]

    @property
    def used_bytes(self) -> int:
        return sum(self.processes.values())

    @property
    def uuid(self) -> str:
        return f"GPU-7068616e-746f-6d00-0000-{self.index:012x}"


def read_cards() -> list[_Card]:
    """Return the simulated cards with the use of each living process."""
    rows = []
    try:
        with open(os.environ.get("PHANTOM_USE", ""), "rb") as file:
            rows = list(_ROW.iter_unpack(file.read()))
        rows = [row for row in rows if os.path.exists(f"/proc/{row[0]}")]
    except (OSError, struct.error):
        pass
    cards = []
    for index, text in enumerate(filter(None, os.environ.get("PHANTOM_CARDS", "").split(";"))):
        name, *figures = text.split(",")
        use = {
            row[0]: row[1 + index]
            for row in rows
            if row[1 + index] and os.path.exists(f"/proc/{row[0]}")
        }
        cards.append(_Card(index, name, int(figures[-2]), use))
    return cards


def _describe_process(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return _UNKNOWN


def main(arguments: list[str]) -> int:
    """Print what ``nvidia-smi`` would print; return its exit status."""
    parser = argparse.ArgumentParser("nvidia-smi", description=__doc__)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id", default="")
    parser.add_argument("-l", "--loop", type=float, nargs="?", const=5.0)
    parser.add_argument("-lms", "--loop-ms", type=float)
    parser.add_argument("--query-gpu", default="")
    parser.add_argument("--query-compute-apps", default="")
    parser.add_argument("--format", default="csv")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-d", "--display", default="")
    options = parser.parse_args(arguments)
    wait_s = options.loop if options.loop_ms is None else options.loop_ms / 1000
    while True:
        wanted = set(filter(None, options.id.split(",")))
        cards = [one for one in read_cards() if not wanted & {str(one.index), one.uuid} ^ wanted]
        print("\n".join(_list_lines(options, cards)), flush=True)
        if wait_s is None:
            return 0
        time.sleep(wait_s)


def _list_lines(options: argparse.Namespace, cards: list[_Card]) -> list[str]:
    if options.list_gpus:
        return [f"GPU {one.index}: {one.name} (UUID: {one.uuid})" for one in cards]
    if options.query_gpu:
        return _query(options.query_gpu, options.format, [_get_fields(one) for one in cards])
    if options.query_compute_apps:
        rows = []
        for one in cards:
            for pid, used in one.processes.items():
                name, size = (_describe_process(pid), ""), (str(used // _MIB), "MiB")
                row = {"pid": (str(pid), ""), "process_name": name, "name": name}
                row |= {"used_memory": size, "used_gpu_memory": size}
                rows.append({**row, "gpu_uuid": (one.uuid, ""), "gpu_name": (one.name, "")})
        return _query(options.query_compute_apps, options.format, rows)
    if options.query:
        return _list_memory(cards)
    return _draw_table(cards)


def _get_fields(card: _Card) -> dict[str, tuple[str, str]]:
    """Return the value and the unit of each known field."""
    used, total = -(-card.used_bytes // _MIB), card.total_bytes // _MIB
    name, bus = (card.name, ""), (f"00000000:{card.index + 1:02X}:00.0", "")
    return {
        "index": (str(card.index), ""),
        "count": (str(len(read_cards())), ""),
        "name": name,
        "gpu_name": name,
        "uuid": (card.uuid, ""),
        "gpu_uuid": (card.uuid, ""),
        "pci.bus_id": bus,
        "gpu_bus_id": bus,
        "driver_version": (_DRIVER, ""),
        "memory.total": (str(total), "MiB"),
        "memory.used": (str(used), "MiB"),
        "memory.free": (str(total - used), "MiB"),
        "memory.reserved": ("0", "MiB"),
        "utilization.gpu": ("0", "%"),
        "utilization.memory": ("0", "%"),
        "timestamp": (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
    }


def _query(fields: str, form: str, rows: list[dict[str, tuple[str, str]]]) -> list[str]:
    """Return a table of comma-separated values; fields that are not simulated are not available."""
    names = [name.strip() for name in fields.split(",")]
    units = {name: (rows[0] if rows else {}).get(name, ("", ""))[1] for name in names}
    lines = []
    if "noheader" not in form:
        lines.append(", ".join(f"{one} [{units[one]}]" if units[one] else one for one in names))
    for row in rows:
        values = [row.get(name, (_UNKNOWN, "")) for name in names]
        lines.append(
            ", ".join(value if "nounits" in form else f"{value} {u}".strip() for value, u in values)
        )
    return lines


def _list_memory(cards: list[_Card]) -> list[str]:
    lines = [f"Driver Version : {_DRIVER}", f"Attached GPUs  : {len(cards)}"]
    for one in cards:
        fields = _get_fields(one)
        lines += [f"GPU {fields['pci.bus_id'][0]}", f"    Product Name : {one.name}"]
        lines.append("    FB Memory Usage")
        for label in ("Total", "Reserved", "Used", "Free"):
            lines.append(f"        {label:9}: {fields[f'memory.{label.lower()}'][0]} MiB")
    return lines


def _draw_table(cards: list[_Card]) -> list[str]:
    """Return the table that ``nvidia-smi`` prints without options."""
    line = "+" + "-" * 89 + "+"
    rows = [line, f"| NVIDIA-SMI {_DRIVER} (simulated)   Driver {_DRIVER}   CUDA Version: {_CUDA}"]
    rows += [line, f"| GPU  {'Name':27}{'Bus-Id':23}Memory-Usage   GPU-Util"]
    for one in cards:
        fields = _get_fields(one)
        use = f"{fields['memory.used'][0]}MiB / {fields['memory.total'][0]}MiB"
        bus = fields["pci.bus_id"][0]
        rows.append(f"| {one.index:3}  {one.name:26} {bus}  {use:>20}         0%")
    rows += [line, f"| Processes:  GPU      PID   {'Process name':41}GPU Memory"]
    for one in cards:
        for pid, used in one.processes.items():
            name = _describe_process(pid)[-38:]
            rows.append(f"|             {one.index:3}  {pid:7}   {name:38}  {used // _MIB:7}MiB")
    return [f"{row:90}|" if row[0] == "|" else row for row in [*rows, line]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``nvidia-smi`` for simulated cards: the table, ``-L``, and the common queries.

It runs as a program of its own, with the environment of the process on the cards, and needs only the
standard library. ``SIMULATED_CARD_USE`` names a file with rows of a process id and 16 numbers, the bytes
that the process uses on each card (``publish`` in ``native/runtime/cards.c``).
"""

import argparse
import contextlib
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
    def uuid(self) -> str:
        return f"GPU-73696d75-6c61-7400-0000-{self.index:012x}"

    @property
    def bus(self) -> str:
        return f"00000000:{self.index + 1:02X}:00.0"

    @property
    def used_mib(self) -> int:
        return -(-sum(self.processes.values()) // _MIB)


def _read_cards() -> list[_Card]:
    """Return the simulated cards with the use of each living process."""
    rows = []
    with contextlib.suppress(OSError, struct.error):
        with open(os.environ.get("SIMULATED_CARD_USE", ""), "rb") as file:
            rows = list(_ROW.iter_unpack(file.read()))
    rows = [row for row in rows if os.path.exists(f"/proc/{row[0]}")]
    cards = []
    for index, text in enumerate(
        filter(None, os.environ.get("SIMULATED_CARDS", "").split(";"))
    ):
        name, *figures = text.split(",")
        use = {pid: sizes[index] for pid, *sizes in rows if sizes[index]}
        cards.append(_Card(index, name, int(figures[-2]), use))
    return cards


def _name_process(pid: int) -> str:
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
    options = parser.parse_args(arguments)
    wait_s = options.loop if options.loop_ms is None else options.loop_ms / 1000
    while True:
        wanted = set(filter(None, options.id.split(",")))
        all_cards = _read_cards()
        cards = [
            one
            for one in all_cards
            if not wanted or wanted & {str(one.index), one.uuid}
        ]
        if options.list_gpus:
            lines = [f"GPU {one.index}: {one.name} (UUID: {one.uuid})" for one in cards]
        elif options.query_gpu:
            rows = [_get_fields(one, len(all_cards)) for one in cards]
            lines = _query(options.query_gpu, options.format, rows)
        elif options.query_compute_apps:
            rows = [
                _get_process_fields(one, pid, used)
                for one in cards
                for pid, used in one.processes.items()
            ]
            lines = _query(options.query_compute_apps, options.format, rows)
        else:
            lines = _draw_table(cards)
        print("\n".join(lines), flush=True)
        if wait_s is None:
            return 0
        time.sleep(wait_s)


def _get_fields(card: _Card, count: int) -> dict[str, tuple[object, str]]:
    total = card.total_bytes // _MIB
    texts = {
        "index": card.index,
        "count": count,
        **dict.fromkeys(("name", "gpu_name"), card.name),
        **dict.fromkeys(("uuid", "gpu_uuid"), card.uuid),
        **dict.fromkeys(("pci.bus_id", "gpu_bus_id"), card.bus),
        "driver_version": _DRIVER,
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
    }
    sizes = {
        "total": total,
        "used": card.used_mib,
        "free": total - card.used_mib,
        "reserved": 0,
    }
    return {
        **{name: (text, "") for name, text in texts.items()},
        **{f"memory.{name}": (size, "MiB") for name, size in sizes.items()},
        **{f"utilization.{name}": (0, "%") for name in ("gpu", "memory")},
    }


def _get_process_fields(
    card: _Card, pid: int, used: int
) -> dict[str, tuple[object, str]]:
    return {
        "pid": (pid, ""),
        **dict.fromkeys(("process_name", "name"), (_name_process(pid), "")),
        **dict.fromkeys(("used_memory", "used_gpu_memory"), (used // _MIB, "MiB")),
        "gpu_uuid": (card.uuid, ""),
        "gpu_name": (card.name, ""),
    }


def _query(
    fields: str, form: str, rows: list[dict[str, tuple[object, str]]]
) -> list[str]:
    """Return a table of comma-separated values; fields that are not simulated are not available."""
    names = [name.strip() for name in fields.split(",")]
    lines = []
    if "noheader" not in form:
        units = [
            (name, (rows[0] if rows else {}).get(name, ("", ""))[1]) for name in names
        ]
        lines.append(
            ", ".join(f"{name} [{unit}]" if unit else name for name, unit in units)
        )
    for row in rows:
        values = [row.get(name, (_UNKNOWN, "")) for name in names]
        shown = (
            f"{value} {'' if 'nounits' in form else unit}".strip()
            for value, unit in values
        )
        lines.append(", ".join(shown))
    return lines


def _draw_table(cards: list[_Card]) -> list[str]:
    """Return the table that ``nvidia-smi`` prints without options."""
    line = "+" + "-" * 89 + "+"
    rows = [
        line,
        f"| NVIDIA-SMI {_DRIVER} (simulated)   Driver {_DRIVER}   CUDA Version: {_CUDA}",
    ]
    rows += [line, f"| GPU  {'Name':27}{'Bus-Id':23}Memory-Usage   GPU-Util"]
    for one in cards:
        use = f"{one.used_mib}MiB / {one.total_bytes // _MIB}MiB"
        rows.append(f"| {one.index:3}  {one.name:26} {one.bus}  {use:>20}         0%")
    rows += [line, f"| Processes:  GPU      PID   {'Process name':41}GPU Memory"]
    for one in cards:
        for pid, used in one.processes.items():
            name = _name_process(pid)[-38:]
            rows.append(
                f"|             {one.index:3}  {pid:7}   {name:38}  {used // _MIB:7}MiB"
            )
    return [f"{row:90}|" if row[0] == "|" else row for row in [*rows, line]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

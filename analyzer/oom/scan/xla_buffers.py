"""The buffers of a compiled program that a log lists."""

from __future__ import annotations

from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.amounts import parse_size
from analyzer.oom.log_records import PeakBuffer, XlaBuffers
from analyzer.oom.scan.patterns import find

_MOST_BUFFERS: Final = 64
_LONGEST: Final = 200  # characters of a label or a shape


def add_buffer(xla: XlaBuffers, text: str) -> bool:
    """Add a line of the list of buffers; return False if it is none."""
    stat = find("xla_stat", text) or find("tpu_stat", text)
    if stat is not None:
        fields = {
            name.partition("_")[0]: value for name, value in stat.groupdict().items() if value
        }
        size = parse_size(fields["size"])
        if size is not None:
            xla.stats.setdefault(fields["name"], size)
        return True
    if find("xla_buffer", text) and len(xla.buffers) < _MOST_BUFFERS:
        xla.buffers.append(PeakBuffer(Range.exactly(0)))
    field = find("xla_field", text)
    if field is None or not xla.buffers:
        return find("xla_buffer", text) is not None
    _set_field(xla.buffers[-1], field["name"], field["value"].strip())
    return True


def _set_field(buffer: PeakBuffer, name: str, value: str) -> None:
    """Set the field of a buffer that the list prints under this name."""
    size = parse_size(value.partition(" ")[0])
    if name == "Size":
        buffer.size = size or buffer.size
    elif name.startswith("Extra memory"):
        buffer.padding = size
    elif name == "Operator":
        op = find("xla_op", value)
        buffer.operator = op["name"][: 2 * _LONGEST] if op else value[: 2 * _LONGEST]
    elif name in ("XLA Label", "XLA label"):
        buffer.label = value[:_LONGEST]
    else:
        buffer.shape = value[:_LONGEST]
        buffer.label = buffer.label or ("parameter" if "Parameter" in name else "")

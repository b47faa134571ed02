"""A protobuf schema of the fields of XSpace that the package reads.

TensorFlow's generated module would import TensorFlow. Field numbers are those of
``tsl/profiler/protobuf/xplane.proto``; the decoder skips all other fields.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import message_factory

from analyzer.tracing.parse.protobuf import message_class

_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    # name: (field number, type); [] means repeated
    "Stat": {
        "metadata_id": (1, "int64"),
        "double_value": (2, "double"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "bytes"),
        "bytes_value": (6, "bytes"),
        "ref_value": (7, "uint64"),
    },
    "Event": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "Stat[]"),
    },
    "Line": {
        "id": (1, "int64"),
        "name": (2, "bytes"),
        "timestamp_ns": (3, "int64"),
        "events": (4, "Event[]"),
    },
    "Metadata": {"id": (1, "int64"), "name": (2, "bytes")},
    "MetadataEntry": {"key": (1, "int64"), "value": (2, "Metadata")},
    "Plane": {
        "id": (1, "int64"),
        "name": (2, "bytes"),
        "lines": (3, "Line[]"),
        "event_metadata": (4, "MetadataEntry[]"),
        "stat_metadata": (5, "MetadataEntry[]"),
        "stats": (6, "Stat[]"),
    },
    "Module": {"name": (2, "bytes"), "stats": (5, "Stat[]")},
    "ModuleEntry": {"value": (2, "Module")},
    "ModulePlane": {"modules": (4, "ModuleEntry[]")},
    "Space": {"planes": (1, "Plane[]"), "hostnames": (4, "bytes[]")},
}


Space: Any = message_class("analyzer.xspace", _MESSAGES, "Space")
"""The message class of a whole ``.xplane.pb`` file."""

_members = Space.DESCRIPTOR.file.message_types_by_name
Plane: Any = message_factory.GetMessageClass(_members["Plane"])
"""The message class of a plane."""

ModulePlane: Any = message_factory.GetMessageClass(_members["ModulePlane"])
"""The message class of the plane ``/host:metadata``, which holds the compiled modules."""

Event: Any = message_factory.GetMessageClass(_members["Event"])
"""The message class of an event of a line."""

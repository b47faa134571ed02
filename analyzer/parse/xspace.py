"""The part of the profiler's XSpace format that we read, as a protobuf schema of our own.

TensorFlow's generated module would import TensorFlow. Field numbers are those of
``tsl/profiler/protobuf/xplane.proto``; fields that are not listed are skipped by the decoder.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES: Final = {
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}
_PACKAGE: Final = "analyzer.xspace"
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    # name: (field number, type); a type with [] is repeated
    "Stat": {
        "metadata_id": (1, "int64"),
        "double_value": (2, "double"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "bytes"),
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
    "Space": {"planes": (1, "Plane[]"), "hostnames": (4, "bytes[]")},
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="analyzer/xspace.proto", package=_PACKAGE, syntax="proto3"
    )
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for field_name, (number, type_name) in fields.items():
            base = type_name.removesuffix("[]")
            field = message.field.add(
                name=field_name,
                number=number,
                label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if type_name.endswith("[]")
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            )
            if base in _TYPES:
                field.type = _TYPES[base]
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{base}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())

Space: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.Space"))
"""The message class of a whole ``.xplane.pb`` file."""

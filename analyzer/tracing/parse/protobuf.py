"""Protobuf message classes from schemas that list only the needed fields.

TensorFlow's and the profiler's generated modules would import TensorFlow. Other fields are skipped.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from analyzer.model.contract.reading import read_table

# Message -> field -> (number, type). A type with ``[]`` is repeated; other names are messages.
# Enumerations are read as ``int64``, which has the same encoding, and maps as repeated entries with
# the fields ``key`` (1) and ``value`` (2).
Messages = Mapping[str, Mapping[str, tuple[int, str]]]

_Field = descriptor_pb2.FieldDescriptorProto
_pool = descriptor_pool.DescriptorPool()


def message_class(package: str, messages: Messages, root: str) -> Any:
    """Return the message class ``root`` of a schema; ``package`` can be used once in a process."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto",
        package=package,
        syntax="proto3",
    )

    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)

        for name, (number, type_name) in fields.items():
            base = type_name.removesuffix("[]")
            is_message = base in messages

            message.field.add(
                name=name,
                number=number,
                label=_Field.LABEL_OPTIONAL
                if base == type_name
                else _Field.LABEL_REPEATED,
                type=getattr(
                    _Field,
                    "TYPE_MESSAGE" if is_message else f"TYPE_{base.upper()}",
                ),
                type_name=f".{package}.{base}" if is_message else None,
            )

    _pool.Add(file)

    return message_factory.GetMessageClass(
        _pool.FindMessageTypeByName(f"{package}.{root}")
    )


TEXTS = read_table("tracing/parse/messages.toml", dict[str, str])


def read_schema(name: str) -> Messages:
    """Return a schema of ``messages.toml``."""
    messages: dict[str, dict[str, tuple[int, str]]] = {}
    fields: dict[str, tuple[int, str]] = {}

    for word in TEXTS[name].split():
        name, is_field, place = word.partition("=")
        if is_field:
            number, _, type_name = place.partition(":")
            fields[name] = int(number), type_name
        else:
            fields = messages[name] = {}

    return messages


# Limit of a name in bytes: a quarter of the limit of a name in a report.
_MOST_BYTES = 1 << 14


def decode_text(content: bytes) -> str:
    """Return bytes as text.

    Invalid UTF-8 becomes U+FFFD. A text longer than any name of TensorFlow's is truncated and gets
    a digest of the whole, so that different texts stay different.
    """
    if len(content) <= _MOST_BYTES:
        return content.decode("utf-8", "replace")

    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[:_MOST_BYTES].decode('utf-8', 'replace')}…{digest}"


_XSPACE = read_schema("xspace")

# The message class of a whole ``.xplane.pb`` file.
Space: Any = message_class("analyzer.xspace", _XSPACE, "Space")

_UNREAD_LINES = {
    **_XSPACE,
    "Plane": {**_XSPACE["Plane"], "lines": (_XSPACE["Plane"]["lines"][0], "bytes[]")},
    "Line": {**_XSPACE["Line"], "events": (_XSPACE["Line"]["events"][0], "bytes[]")},
}

# The same with the lines of a plane as bytes.
PlainSpace: Any = message_class("analyzer.plain", _UNREAD_LINES, "Space")

_members = PlainSpace.DESCRIPTOR.file.message_types_by_name

# The message class of a line, with its events as bytes.
PlainLine: Any = message_factory.GetMessageClass(_members["Line"])

# The message class of an event of a line.
Event: Any = message_factory.GetMessageClass(_members["Event"])

"""Bytes of untrusted files to records: unpacked within a limit, decoded and checked.

What is packed here stays within that limit.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from analyzer.model.errors import TraceError

_Record = TypeVar("_Record")

GZIP_MAGIC: Final = b"\x1f\x8b"

MOST_UNPACKED_BYTES: Final = (1 << 31) - 1
"""The most that a packed file may unpack to: what a protobuf message can hold."""

_FREE_BYTES: Final = 8 << 20  # that any file may unpack to, however small it is
_MOST_RATIO: Final = 24
"""What is unpacked beyond 8 MiB is at most so many times the packed size. Traces pack to a sixth, graphs
to a sixteenth; what packs to a thousandth was made to fill memory."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class _Version(msgspec.Struct):
    schema_version: int = 0


def pack(content: bytes, level: int = 6) -> bytes:
    """Return a gzip file without name and time in it, which ``unpack`` does not refuse.

    A module with a folded mask of attention packs to a thousandth: such content is stored as it is.

    Args:
        content: What to pack.
        level: How hard to try, 1 to 9.
    """
    packed = gzip.compress(content, level, mtime=0)
    if len(content) > _FREE_BYTES + _MOST_RATIO * len(packed):
        return gzip.compress(content, 0, mtime=0)
    return packed


def unpack(content: bytes, *, most_ratio: int = _MOST_RATIO) -> bytes:
    """Return the content of a gzip file.

    Args:
        content: The file.
        most_ratio: What is unpacked beyond 8 MiB is at most so many times the packed size.

    Raises:
        ValueError: it is damaged, or unpacks to far more than a file of its size would.
    """
    limit = min(_FREE_BYTES + most_ratio * len(content), MOST_UNPACKED_BYTES)
    parts: list[bytes] = []
    room, rest = limit, content
    try:
        while rest[:2] == GZIP_MAGIC:
            unpacker = zlib.decompressobj(wbits=31)
            parts.append(unpacker.decompress(rest, room + 1))
            room -= len(parts[-1])
            if room < 0:
                raise ValueError(f"it unpacks to more than {limit >> 20} MiB")
            if not unpacker.eof:
                raise ValueError("it is cut short")
            rest = unpacker.unused_data
    except zlib.error as error:
        raise ValueError(f"its packing is damaged: {error}") from None
    if not parts or rest.strip(b"\0"):
        raise ValueError("it is no gzip file")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_record(
    path: Path,
    record: type[_Record],
    *,
    version: int,
    hint: str,
    check: Callable[[_Record], None] = lambda record: None,
) -> _Record:
    """Read a JSON file as a record; it is unpacked where its name ends with ``.gz``.

    Args:
        path: The file.
        record: The type of the record.
        version: The newest version of it that is understood.
        hint: What to do where the file is damaged.
        check: Raises a ValueError where fields contradict each other.

    Raises:
        TraceError: the file is missing or damaged, or a newer version wrote it.
    """
    try:
        content = read_regular_file(path)
        text = unpack(content) if path.suffix == ".gz" else content
        found = decode_record(text, record, version)
        check(found)
    except NewerVersionError:
        raise TraceError(
            f"{path} was written by a newer version.", hint="Upgrade tf-memory-analyzer."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} is damaged ({error}).", hint=hint) from None
    return found


class NewerVersionError(ValueError):
    """A record was written by a newer version of the package."""


def decode_record(content: bytes, record: type[_Record], version: int) -> _Record:
    """Return the record in JSON text.

    Args:
        content: UTF-8 text.
        record: The class of the record.
        version: The newest version that this package reads.

    Raises:
        NewerVersionError: its ``schema_version`` is beyond ``version``.
        ValueError: it is no JSON, or a field has another type or lies beyond its limits.
        RecursionError: it is nested too deeply.
    """
    if _SURROGATE.search(content):
        # Half a character, which JSON can hold and no file can, becomes "?".
        content = json.dumps(json.loads(content), ensure_ascii=False).encode("utf-8", "replace")
    if msgspec.json.decode(content, type=_Version).schema_version > version:
        raise NewerVersionError
    return msgspec.json.decode(content, type=record)


def read_regular_file(path: Path) -> bytes:
    """Return the content of a file that lies in a folder of others.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, which may never end.
        ValueError: it is larger than any that is written here.
    """
    with open(path, "rb", opener=open_without_blocking) as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if there.st_size > MOST_UNPACKED_BYTES:
            raise ValueError(f"it has {there.st_size >> 20} MiB")
        return file.read()


def open_without_blocking(name: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes into is not waited for."""
    return os.open(name, flags | os.O_NONBLOCK)


def sibling_file(path: Path, name: str) -> Path:
    """Return the file ``name`` in the folder of ``path``.

    Raises:
        ValueError: it would lie elsewhere, or its name cannot be shown as it is.
    """
    if not name.isprintable():
        raise ValueError(f"{name!r} is no file's name")
    if not name or Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r} lies outside the folder")
    return path.parent / name

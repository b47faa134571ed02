"""Reading of files as checked records: untrusted ones within a limit, and the package's own tables."""

import errno
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from analyzer.model.errors import TraceError

_Record = TypeVar("_Record")

GZIP_MAGIC = b"\x1f\x8b"
_MOST_BYTES = (1 << 31) - 1  # limit of an unpacked file: that of a protobuf message
_PIECE_BYTES = 4 << 20
FREE_BYTES = 8 << 20  # every file may unpack to this size, however small it is

# Limit of the compression ratio above ``FREE_BYTES``: traces have 6, graphs 16, an attack 1000.
_MOST_RATIO = 24
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _NewerVersionError(ValueError):
    """A newer version of the package wrote the record."""


def pack(content: bytes, level: int = 6) -> bytes:
    """Return gzip without name and time; only stored if ``unpack`` would refuse the ratio."""
    packed = gzip.compress(content, level, mtime=0)
    if len(content) > FREE_BYTES + _MOST_RATIO * len(packed):
        return gzip.compress(content, 0, mtime=0)

    return packed


def unpack(content: bytes) -> bytes:
    """Return the content of a gzip file, or raise a ValueError; see ``_MOST_RATIO``."""
    unpacked = BytesIO()
    packed = BytesIO(content)
    limit = min(FREE_BYTES + _MOST_RATIO * len(content), _MOST_BYTES)

    for piece in unpack_pieces(packed, packed.read(_PIECE_BYTES)):
        unpacked.write(piece)
        if unpacked.tell() > limit:
            raise ValueError(f"it unpacks to more than {limit >> 20} MiB")

    return unpacked.getvalue()


def unpack_pieces(packed: IO[bytes], rest: bytes) -> Iterator[bytes]:
    """Yield the content of a gzip stream that begins with ``rest``; zeros may follow the stream.

    A ValueError says that the stream is damaged, after the content before the damage.
    """
    is_over = False

    try:
        while rest[:2] == GZIP_MAGIC:
            unpacker = zlib.decompressobj(wbits=31)
            while not unpacker.eof:
                if not rest:
                    raise ValueError("it is truncated")

                yield unpacker.decompress(rest, _PIECE_BYTES)
                rest = unpacker.unconsumed_tail or packed.read(_PIECE_BYTES)

            rest = unpacker.unused_data + rest
            is_over = True
    except zlib.error as error:
        raise ValueError(f"its compression is damaged: {error}") from None

    if not is_over or rest.strip(b"\0"):
        raise ValueError("it is no gzip file")


def read_record(
    path: Path,
    record: type[_Record],
    *,
    version: int,
    hint: str,
    check: Callable[[_Record], None] = lambda record: None,
) -> _Record:
    """Read a JSON file, or a gzipped one (``.gz``), as a record, or raise a TraceError.

    ``version`` is the newest that this package reads, ``hint`` what to do about a damaged file.
    ``check`` raises a ValueError if fields contradict each other.
    """
    try:
        content = read_regular_file(path)
        text = unpack(content) if path.suffix == ".gz" else content
        decoded = decode_record(text, record, version)
        check(decoded)
    except _NewerVersionError:
        raise TraceError(
            f"{path} was written by a newer version.",
            "Upgrade tf-memory-analyzer.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} is damaged ({error}).", hint) from None

    return decoded


def decode_record(content: bytes, record: type[_Record], version: int) -> _Record:
    """Return the record in a JSON text, or raise a ValueError or RecursionError."""
    if _SURROGATE.search(content):
        # JSON can hold half a surrogate pair, UTF-8 cannot: replace it by "?".
        content = json.dumps(json.loads(content), ensure_ascii=False).encode(
            "utf-8",
            "replace",
        )

    fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    written = msgspec.json.decode(fields.get("schema_version", b"0"), type=int)

    if written > version:
        raise _NewerVersionError

    return msgspec.json.decode(content, type=record)


def read_regular_file(path: Path) -> bytes:
    """Return the content of a file; raise an OSError or ValueError for a pipe or a huge file."""
    with open(path, "rb", opener=open_without_blocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if status.st_size > _MOST_BYTES:
            raise ValueError(f"it has {status.st_size >> 20} MiB")

        return file.read()


def open_without_blocking(name: str, flags: int) -> int:
    """Open a file; do not wait for a writer if it is a pipe. An ``opener`` for ``open``."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has none


def sibling_file(path: Path, name: str) -> Path:
    """Return the file ``name`` in the folder of ``path``; raise a ValueError for another folder."""
    if not name.isprintable():
        raise ValueError(f"{name!r} is no file name")
    if not name or Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r} lies outside the folder")

    return path.parent / name


_Table = TypeVar("_Table")


def read_table(place: str, kind: type[_Table]) -> _Table:
    """Return a TOML file of the package, such as ``report/actions.toml``, as an object of ``kind``."""
    return msgspec.toml.decode((files("analyzer") / place).read_bytes(), type=kind)

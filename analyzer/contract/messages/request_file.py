"""A request to a child as a JSON file, written by the command and read by the child.

Names of files may hold bytes that are no text (surrogates in Python): they go through as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import ValidationError, convert, to_builtins

from analyzer.errors import AnalyzerError

_Request = TypeVar("_Request", bound="Request")


class Request(Protocol):
    """A record that says its version."""

    @property
    def schema_version(self) -> int:
        """The version of the record."""


def write_request(path: Path, request: Request) -> None:
    """Write a request where the child reads it."""
    path.write_text(json.dumps(to_builtins(request)), encoding="utf-8")


def read_request(path: Path, record: type[_Request], version: int) -> _Request:
    """Return what :func:`write_request` wrote.

    Args:
        path: The file.
        record: The class of the request.
        version: The version that this process understands.

    Raises:
        AnalyzerError: the file is missing or damaged, or the command is of another version.
    """
    try:
        plain = json.loads(path.read_bytes())
        found = plain.get("schema_version") if isinstance(plain, dict) else None
        if found != version:
            raise ValidationError(f"it has version {found}, and {version} is understood")
        return convert(plain, record)
    except (OSError, ValueError, RecursionError) as error:
        raise AnalyzerError(
            f"The request in {path} cannot be read: {error}.",
            hint="The command and its child must be of one installation of tf-memory-analyzer.",
        ) from None

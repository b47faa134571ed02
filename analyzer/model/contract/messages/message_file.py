"""A message between a command and its child as a JSON file: a request, or an answer.

Names of files may hold bytes that are no text (surrogates in Python): they go through as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import ValidationError, convert, to_builtins

from analyzer.model.errors import AnalyzerError

_Record = TypeVar("_Record", bound="Versioned")


class Versioned(Protocol):
    """A record that says its version."""

    @property
    def schema_version(self) -> int:
        """The version of the record."""


def write_message(path: Path, message: Versioned) -> None:
    """Write a message where the other process reads it: whole or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(to_builtins(message)), encoding="utf-8")
    unfinished.replace(path)


def read_message(path: Path, record: type[_Record], version: int) -> _Record:
    """Return what ``write_message`` wrote.

    Args:
        path: The file.
        record: The class of the message.
        version: The version that this process understands.

    Raises:
        AnalyzerError: the file is missing or damaged, or the other process is of another version.
    """
    try:
        plain = json.loads(path.read_bytes())
        found = plain.get("schema_version") if isinstance(plain, dict) else None
        if found != version:
            raise ValidationError(f"it has version {found}, and {version} is understood")
        return convert(plain, record)
    except (OSError, ValueError, RecursionError) as error:
        raise AnalyzerError(
            f"The message in {path} cannot be read: {error}.",
            hint="The command and its child must be of one installation of tf-memory-analyzer.",
        ) from None

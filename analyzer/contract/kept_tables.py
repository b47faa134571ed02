"""The facts in ``prediction.npz``, beside the tables of a finished estimate. Format 1."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from analyzer.contract.fields import Name, Word

KEPT_FORMAT: Final = 1  # of the saved tables' layout

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""SHA-256 of a file's content."""

_Files = Annotated[dict[Name, Digest], Meta(max_length=4096)]


class KeptFacts(Struct, frozen=True, kw_only=True):
    """What the tables of a finished estimate belong to.

    Attributes:
        format: Which form of file it is.
        analyzer: Version of the package that wrote it.
        files: The other files of the folder, by name, each with its digest.
    """

    format: int
    analyzer: Word
    files: _Files

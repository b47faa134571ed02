"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from analyzer.errors import InputError


class atomic:  # noqa: N801 - used as a function
    """A temporary file beside ``path`` that becomes it when the block ends well.

    Raises:
        InputError: the folder cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path."""
        self._path = path
        self._temporary: Path | None = None

    def __enter__(self) -> Path:
        try:
            handle, name = tempfile.mkstemp(
                prefix=f".{self._path.name}-", suffix=self._path.suffix, dir=self._path.parent
            )
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be written: {error.strerror or error}.",
                hint="Name another file.",
            ) from None
        os.close(handle)
        self._temporary = Path(name)
        return self._temporary

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._temporary is not None
        if kind is None:
            self._temporary.chmod(0o644)
            self._temporary.replace(self._path)
        else:
            self._temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

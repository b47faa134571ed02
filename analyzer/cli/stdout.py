"""Standard output as it is: of any encoding, closed, full, or a pipe that no one reads any more."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from analyzer.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

DASH: Final = Path("-")
"""The name of a file that stands for standard output."""
_REPLACEMENTS: Final = "analyzer_ascii"
_PLAIN: Final = str.maketrans(
    {
        **dict.fromkeys("─━═╌╴╶—–", "-"),  # noqa: RUF001
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┡┩╇╪╞╡", "+"),
        **dict.fromkeys("█▉▊▋▌▍▎▏", "#"),
        **dict.fromkeys("…", "~"),
        **dict.fromkeys("•·×", "*"),  # noqa: RUF001
        **dict.fromkeys("’‘", "'"),  # noqa: RUF001
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("→➜", ">"),
        **dict.fromkeys("≤", "<"),
    }
)
_SPACES_AT_END: Final = re.compile(r" +(?=\n)")
USUAL_WIDTH: Final = 120
"""Columns of what is printed into a file or a pipe."""
_LEAST_WIDTH: Final = 40
"""Columns below which no table of numbers can be read."""
_MOST_DIGITS: Final = 3
"""A width of more digits is no one's."""
_was_closed = False


def prepare() -> None:
    """Make standard output and error such that no character and no closed file is a traceback.

    A character that the encoding lacks becomes one of ASCII, one for one, so that columns stay.
    """
    global _was_closed
    # A closed descriptor would be given to the next file opened, and be printed into.
    with contextlib.suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
            pass
        os.close(descriptor)
    codecs.register_error(_REPLACEMENTS, _in_ascii)
    _was_closed = sys.stdout is None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_REPLACEMENTS)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for the characters that an encoding lacks (a codec's error handler)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(c if c.isascii() else "?" for c in text), error.end


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print in the block; a reader that went away is no error, a full disk is one.

    Raises:
        InputError: standard output cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # `analyze … | head`
        _discard()
    except OSError as error:
        _discard()
        raise InputError(
            f"Standard output cannot be written: {error.strerror or error}.",
            hint="Write to a file: --json FILE, --html FILE.",
        ) from None


def _discard() -> None:
    """Let what is printed from now on, and what was not yet, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_open() -> None:
    """Refuse to write a result into a standard output that is closed.

    Raises:
        InputError: it is.
    """
    if _was_closed:
        raise InputError("Standard output is closed.", hint="Name a file instead of -.")


def write_to_stdout(write: Callable[[Path], None]) -> None:
    """Let ``write`` write a file, and copy its bytes to standard output.

    Raises:
        InputError: standard output cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        path = Path(folder) / "result"
        write(path)
        content = path.read_bytes()
    with printing():
        binary = getattr(sys.stdout, "buffer", None)
        if binary is None:
            sys.stdout.write(content.decode("utf-8"))
        else:
            sys.stdout.flush()
            binary.write(content)


class _Trimmed:
    """Standard output without the spaces that end a table's lines."""

    def __init__(self) -> None:
        self.encoding = getattr(sys.stdout, "encoding", "utf-8")

    def write(self, text: str) -> int:
        return sys.stdout.write(_SPACES_AT_END.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def _width() -> int:
    """Return the columns that ``COLUMNS`` asks for, 120 where it says nothing of use."""
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and len(asked) <= _MOST_DIGITS else 0
    return width if width >= _LEAST_WIDTH else USUAL_WIDTH


def terminal() -> Console:
    """Return where tables go: as wide as the terminal, elsewhere as ``COLUMNS`` says or 120 columns."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich's own way ends the process with 1: a bug of ours

    if sys.stdout.isatty():
        return Terminal()
    return Terminal(file=cast("IO[str]", _Trimmed()), width=_width(), no_color=True)

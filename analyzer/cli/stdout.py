"""Standard output in any state: any encoding, closed, full, or a pipe without a reader."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, cast

from analyzer.model.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


DASH: Final = Path("-")
"""File name for standard output."""
_REPLACEMENTS: Final = "analyzer_ascii"
_PLAIN: Final = str.maketrans("█▏…·×→", "##~**>")  # noqa: RUF001
"""ASCII for our own characters; Rich draws its lines in ASCII by itself."""
_SPACES_AT_END: Final = re.compile(r" +(?=\n)")
USUAL_WIDTH: Final = 120
"""Columns of text printed to a file or a pipe."""
_LEAST_WIDTH: Final = 40
"""A table of numbers needs at least this many columns."""
_was_closed = False


def prepare() -> None:
    """Prepare stdout and stderr for closed files and for characters outside their encoding.

    Such a character becomes one ASCII character, so that table columns stay aligned.
    """
    global _was_closed
    # The next file opened would get a closed descriptor and receive our output.
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
    """Return ASCII for characters outside the encoding (an error handler of ``codecs``)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(c if c.isascii() else "?" for c in text), error.end


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print in the block; ignore a pipe without a reader."""
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
    """Discard buffered and future output."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_open() -> None:
    """Check that standard output is open."""
    if _was_closed:
        raise InputError("Standard output is closed.", hint="Name a file instead of -.")


def is_stdout(path: Path) -> bool:
    """Say whether a path is standard output itself, such as ``/dev/stdout``."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def write_to_stdout(write: Callable[[Path], object]) -> None:
    """Write to a temporary file with ``write``, and copy its bytes to standard output."""
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


class _TrimmedStdout:
    """Standard output without spaces at line ends."""

    def __init__(self) -> None:
        self.encoding = getattr(sys.stdout, "encoding", "utf-8")

    def write(self, text: str) -> int:
        return sys.stdout.write(_SPACES_AT_END.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def _width() -> int:
    """Return the columns in ``COLUMNS``; 120 if that is unusable."""
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and len(asked) <= len("999") else 0
    return width if width >= _LEAST_WIDTH else USUAL_WIDTH


def terminal() -> Console:
    """Return the console for tables: as wide as the terminal, otherwise ``COLUMNS`` or 120 columns."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with 1, our code for a bug

    if sys.stdout.isatty():
        return Terminal()
    return Terminal(file=cast("IO[str]", _TrimmedStdout()), width=_width(), no_color=True)


Progress = Callable[[str, float], None]

ProgressForm = Literal["none", "bar", "lines"]
"""``bar`` shows nothing if stderr is no terminal."""

_DELAY_S: Final = 2.0
"""A command that ends sooner shows no bar."""


@contextlib.contextmanager
def progress_bar(form: ProgressForm = "bar") -> Iterator[Progress]:
    """Show the stage and the completed share, 0 to 1, that the yielded function is called with."""
    if form == "lines":
        yield _print_stages()
    elif form == "none" or not sys.stderr.isatty():
        yield lambda stage, share: None
    else:
        with _delayed_bar() as show:
            yield show


def _print_stages() -> Progress:
    begin = time.monotonic()
    last = ""

    def show(stage: str, share: float) -> None:
        nonlocal last
        if stage != last:
            print(f"{time.monotonic() - begin:6.1f} s  {stage}", file=sys.stderr, flush=True)
        last = stage

    return show


@contextlib.contextmanager
def _delayed_bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("starting", total=1.0)
    starter = threading.Timer(_DELAY_S, bar.start)
    starter.daemon = True
    starter.start()
    try:
        yield lambda stage, share: bar.update(task, description=stage, completed=share)
    finally:
        starter.cancel()
        starter.join()
        bar.stop()

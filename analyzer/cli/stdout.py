"""Standard output in any state: any encoding, closed, full, or a pipe without a reader."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from analyzer.model.errors import InputError
from analyzer.model.progress import listening

if TYPE_CHECKING:
    from rich.console import Console


DASH = Path("-")  # standard output
_REPLACEMENTS = "analyzer_ascii"

# ASCII for our own characters; Rich draws its lines in ASCII by itself.
_PLAIN = str.maketrans("█▏…·×→", "##~**>")  # noqa: RUF001
USUAL_WIDTH = 120  # columns of text printed to a file or a pipe
_WIDTH = re.compile(r"[4-9]\d|[1-9]\d\d")  # columns, at least 40 for a table
_was_closed = False


def prepare() -> None:
    """Prepare stdout and stderr: closed, or an encoding without a character, which becomes ASCII."""
    global _was_closed

    # The next file opened would get a closed descriptor and receive our output.
    with suppress(OSError):
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


@contextmanager
def printing() -> Iterator[None]:
    """Print in the block; ignore a pipe without a reader."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        _discard_output()

        if not isinstance(error, BrokenPipeError):  # as of `analyze … | head`
            raise InputError(
                f"Standard output cannot be written: {error.strerror or error}.",
                "Write to a file: --json FILE, --html FILE.",
            ) from None


def has_reader() -> bool:
    """Return whether a line break can be written; if not, discard all output."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return False

    return True


def _discard_output() -> None:
    """Discard buffered and future output."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_open() -> None:
    """Check that standard output is open."""
    if _was_closed:
        raise InputError("Standard output is closed.", "Name a file instead of -.")


def write_to_stdout(write: Callable[[Path], object]) -> None:
    """Write to a temporary file with ``write``, and copy its bytes to standard output."""
    with TemporaryDirectory(prefix="analyze-") as folder:
        path = Path(folder) / "result"
        write(path)
        content = path.read_bytes()

    with printing():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
        else:
            sys.stdout.write(content.decode("utf-8"))


class _TrimmedStdout:
    """Standard output without spaces at line ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +(?=\n)", "", text))


def terminal() -> Console:
    """Return the console for tables: as wide as the terminal, otherwise ``COLUMNS`` or 120 columns."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with 1, our code for a bug

    if sys.stdout.isatty():
        return Terminal()

    asked = os.environ.get("COLUMNS", "")

    width = USUAL_WIDTH
    if _WIDTH.fullmatch(asked):
        width = int(asked)

    return Terminal(file=cast("IO[str]", _TrimmedStdout()), width=width, no_color=True)


# ``bar`` shows nothing if stderr is no terminal
ProgressForm = Literal["none", "bar", "lines"]

_DELAY_S = 2.0  # a command that ends sooner shows no bar


@contextmanager
def progress_bar(form: ProgressForm = "bar") -> Iterator[None]:
    """Show the stages that the block reports, and the shares of them that are done."""
    if form == "lines":
        begin = time.monotonic()
        last = ""

        def print_stage(stage: str, share: float | None) -> None:
            nonlocal last
            if stage != last:
                print(
                    f"{time.monotonic() - begin:6.1f} s  {stage}",
                    file=sys.stderr,
                    flush=True,
                )

            last = stage

        with listening(print_stage):
            yield

        print_stage("done", None)
        return

    if form == "none" or not sys.stderr.isatty():
        yield
        return

    from rich import progress
    from rich.console import Console
    from rich.table import Column

    console = Console(stderr=True)
    stage = progress.TextColumn("{task.description}", table_column=Column())  # wraps
    length = progress.BarColumn(30 if console.width >= 120 else 8)

    elapsed = progress.TimeElapsedColumn()
    bar = progress.Progress(stage, length, elapsed, console=console, transient=True)
    task = bar.add_task("starting", total=None)
    starter = threading.Timer(_DELAY_S, bar.start)
    starter.daemon = True
    starter.start()

    def show_stage(stage: str, share: float | None) -> None:
        bar.tasks[0].total = None if share is None else 1.0  # without one it pulses
        bar.update(task, description=stage, completed=share)

    try:
        with listening(show_stage):
            yield
    finally:
        starter.cancel()
        starter.join()
        bar.stop()


def print_news(line: str, *, is_quiet: bool) -> None:
    """Print a part of the answer on stderr as soon as it is known."""
    if not is_quiet:
        print(line, file=sys.stderr, flush=True)

"""Where a result goes: the terminal, and the files that were asked for."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analyzer.cli import shared_options as options
from analyzer.cli.stdout import DASH, check_open, printing, terminal, write_to_stdout
from analyzer.model.contract.report.saved_result import REPORT_HTML
from analyzer.model.errors import InputError, LimitError
from analyzer.model.units import parse_bytes
from analyzer.report.exports.output_files import check_output, is_regular
from analyzer.report.report_words import peak_limit_words
from analyzer.report.result import Result
from analyzer.tracing.parse.logdir import RUN_FILE

_READ: Final = (
    *(RUN_FILE, "graph.json.gz", "card.json", "prediction.npz", "kept.json"),
    *(".plan.gz", ".pb", ".pb.gz"),
    *(".data-00000-of-00001", ".index", ".keras", ".h5", ".hdf5", ".py"),
)
"""How the names end of what is read of a run folder, a logdir or a saved model."""

Writer = Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What was asked for: files by path, ``-`` for standard output, None for not at all.

    Each field is an option.
    """

    json: options.JsonFile = None
    html: options.HtmlFile = None
    csv: options.CsvFile = None
    graph: options.GraphFile = None
    markdown: options.MarkdownFile = None
    perfetto: options.PerfettoFile = None
    parquet: options.ParquetFile = None
    max_peak: options.MaxPeak = None
    open_page: options.OpenPage = False
    quiet: options.Quiet = False

    @property
    def paths(self) -> tuple[Path | None, ...]:
        """The files, in the order of ``writers``."""
        return (
            self.json,
            self.html,
            self.csv,
            self.graph,
            self.markdown,
            self.perfetto,
            self.parquet,
        )

    @property
    def has_files(self) -> bool:
        """Whether anything but the terminal's tables was asked for."""
        return self.open_page or any(path is not None for path in self.paths)

    def writers(self, result: Result) -> Iterator[tuple[Path, Writer]]:
        """Yield each file that was asked for, and what writes it."""
        limit = None if self.max_peak is None else parse_bytes(self.max_peak)

        def summary(path: Path) -> None:
            result.to_markdown(path, max_peak_bytes=limit)

        for path, write in zip(
            self.paths,
            (
                result.to_json,
                result.to_html,
                result.to_csv,
                result.to_graph,
                summary,
                result.to_perfetto,
                result.to_parquet,
            ),
            strict=True,
        ):
            if path is not None:
                yield path, write

    def check(self) -> None:
        """Refuse what cannot work before anything is captured.

        Raises:
            InputError: a folder is missing, a size is not one, or pyarrow is not installed.
        """
        check_paths(*self.paths)
        if self.max_peak is not None:
            parse_bytes(self.max_peak)
        if self.parquet is not None:
            from analyzer.report.exports.other_formats import require_pyarrow

            require_pyarrow()


def check_paths(*paths: Path | None) -> None:
    """Refuse files that cannot be written to, before anything is captured.

    Raises:
        InputError: a path is a folder, is in no folder, may not be written to, or is named twice.
    """
    named: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path == DASH:
            check_open()
        else:
            check_output(path)
            if not is_regular(path):
                continue  # a pipe or /dev/null takes several
        real = Path(path if path == DASH else os.path.realpath(path))
        if real in named:
            what = "Standard output" if path == DASH else str(path)
            raise InputError(f"{what} is named twice.", hint="Give each output a file of its own.")
        named.add(real)


def check_not_read(paths: Iterable[Path | None], *sources: Path) -> None:
    """Refuse to write over what is read: the model's own file, a trace, a note of a run.

    Args:
        paths: The outputs.
        sources: What is read: files, or folders of which parts are read.

    Raises:
        InputError: an output is one of them.
    """
    for path in paths:
        if path is None or path == DASH or not path.is_file():
            continue
        real = Path(os.path.realpath(path))
        for source in sources:
            whole = Path(os.path.realpath(source))
            if real == whole or (whole in real.parents and real.name.endswith(_READ)):
                raise InputError(
                    f"{path} is read, and would be written over.", hint="Name another file."
                )


def write_all(writers: Iterator[tuple[Path, Writer]]) -> bool:
    """Write the files, saying which; return whether standard output was one of them."""
    is_taken = False
    for path, write in writers:
        if path == DASH:
            is_taken = True
            write_to_stdout(write)
        else:
            write(path)
            say_wrote(path)
    return is_taken


def say_wrote(path: Path, what: str = "") -> None:
    """Say on standard error that a file or folder was written."""
    print(f"Wrote {path}{what}", file=sys.stderr)


def deliver(result: Result, outputs: Outputs) -> None:
    """Write the files and print the report.

    Raises:
        LimitError: the allocated peak is above ``--max-peak``.
    """
    is_taken = write_all(outputs.writers(result))
    if not is_taken and not outputs.quiet:
        _print(result)
    if outputs.open_page:
        named = None if outputs.html == DASH else outputs.html
        kept = result.folder / REPORT_HTML if result.folder else None
        open_in_browser(named or kept, result.to_html)
    if outputs.max_peak is not None:
        limit = parse_bytes(outputs.max_peak)
        peak = result.report.peak.allocated_bytes
        if peak > limit:
            raise LimitError(peak_limit_words(peak, limit))


def open_in_browser(page: Path | None, write: Writer) -> None:
    """Open ``page``; where there is none, write one into a temporary folder and open that."""
    if page is None or not page.is_file():
        page = Path(tempfile.mkdtemp(prefix="analyze-")) / REPORT_HTML
        write(page)
        say_wrote(page)
    webbrowser.open(page.resolve().as_uri())


def _print(result: Result) -> None:
    from analyzer.report.terminal.terminal_report import print_document

    with printing():
        print_document(result.report, terminal())

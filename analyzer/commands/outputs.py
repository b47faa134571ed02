"""Where a result goes: the terminal, and the files that were asked for."""

from __future__ import annotations

import json
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.errors import InputError, LimitError
from analyzer.session import REPORT_HTML, Result
from analyzer.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What was asked for: files by path, ``-`` for standard output, None for not at all."""

    json: str | None = None
    html: Path | None = None
    csv: Path | None = None
    graph: Path | None = None
    markdown: Path | None = None
    perfetto: Path | None = None
    parquet: Path | None = None
    open_page: bool = False
    quiet: bool = False
    max_peak: str | None = None

    @property
    def has_files(self) -> bool:
        """Whether anything but the terminal's tables was asked for."""
        return self.open_page or any(
            getattr(self, name) is not None
            for name in self.__slots__
            if name not in ("open_page", "quiet", "max_peak")
        )

    def check(self) -> None:
        """Refuse what cannot work before anything is captured.

        Raises:
            InputError: a folder is missing, a size is not one, or pyarrow is not installed.
        """
        check_paths(
            json_path(self.json),
            self.html,
            self.csv,
            self.graph,
            self.markdown,
            self.perfetto,
            self.parquet,
        )
        if self.max_peak is not None:
            parse_bytes(self.max_peak)
        if self.parquet is not None:
            from analyzer.report.exports import require_pyarrow

            require_pyarrow()


def json_path(asked: str | None) -> Path | None:
    """Return the file that ``--json`` names; None where it names none or standard output."""
    return None if asked in (None, "-") else Path(str(asked))


def check_paths(*paths: Path | None) -> None:
    """Refuse files that cannot be written because of where they are.

    Raises:
        InputError: a path is a folder, is in no folder, or is named twice.
    """
    named: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise InputError(f"{path} is a folder.", hint="Name a file in it.")
        if not path.parent.is_dir():
            raise InputError(f"There is no folder {path.parent}.", hint="Make it first.")
        if path.resolve() in named:
            raise InputError(f"{path} is named twice.", hint="Give each output a file of its own.")
        named.add(path.resolve())


def deliver(result: Result, outputs: Outputs) -> None:
    """Write the files and print the report.

    Raises:
        LimitError: the allocated peak is above ``--max-peak``.
    """
    for path, write in (
        (outputs.html, result.to_html),
        (outputs.csv, result.to_csv),
        (outputs.graph, result.to_graph),
        (outputs.markdown, result.to_markdown),
        (outputs.perfetto, result.to_perfetto),
        (outputs.parquet, result.to_parquet),
    ):
        if path is not None:
            write(path)
    if outputs.json == "-":
        json.dump(result.document, sys.stdout, allow_nan=False)
        sys.stdout.write("\n")
    else:
        if outputs.json is not None:
            result.to_json(outputs.json)
        if not outputs.quiet:
            _print(result)
    if outputs.open_page:
        kept = result.folder / REPORT_HTML if result.folder else None
        open_in_browser(outputs.html or kept, result.to_html)
    if outputs.max_peak is not None:
        limit = parse_bytes(outputs.max_peak)
        peak = result.analysis.peak.allocated_bytes
        if peak > limit:
            raise LimitError(
                f"The allocated peak of {format_bytes(peak)} is above the limit of "
                f"{format_bytes(limit)} by {format_bytes(peak - limit)}."
            )


def open_in_browser(page: Path | None, write: Callable[[Path], None]) -> None:
    """Open ``page``; where there is none, write one into a temporary folder and open that."""
    if page is None or not page.is_file():
        page = Path(tempfile.mkdtemp(prefix="analyze-")) / REPORT_HTML
        write(page)
        print(f"Wrote {page}", file=sys.stderr)
    webbrowser.open(page.resolve().as_uri())


def terminal() -> Console:
    """Return where tables go: as wide as the terminal, 120 columns elsewhere."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120, no_color=True)


def _print(result: Result) -> None:
    from analyzer.report.text import print_document

    print_document(result.document, terminal())

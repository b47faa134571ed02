"""Output of a result: the terminal, and files named by options."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from analyzer.capture.process.run_folders import make_default_path
from analyzer.cli import shared_options as options
from analyzer.cli.stdout import (
    DASH,
    ProgressForm,
    check_open,
    is_stdout,
    printing,
    terminal,
    write_to_stdout,
)
from analyzer.model.contract.capture_request import TargetKind, TargetSpec
from analyzer.model.contract.report.subject import Kind
from analyzer.model.contract.report.writing import REPORT_HTML
from analyzer.model.errors import InputError, LimitError
from analyzer.model.units import parse_bytes
from analyzer.report.output_files import check_output, is_regular
from analyzer.report.render.sections import Document
from analyzer.report.result import Result
from analyzer.report.summary import peak_limit_words
from analyzer.report.untrusted import printable
from analyzer.tracing.parse.logdir import RUN_FILE

_INPUT_ENDINGS: Final = (
    *(RUN_FILE, "graph.json.gz", "card.json", "prediction.npz", "kept.json"),
    *(".plan.gz", ".pb", ".pb.gz"),
    *(".data-00000-of-00001", ".index", ".keras", ".h5", ".hdf5", ".py"),
)
"""Name endings of input files in a run folder, a logdir or a saved model."""

_LONGEST_LINE: Final = 1000  # characters of a headline

Writer = Callable[[Path], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOutputs:
    """Options of the outputs of an answer: a path, ``-`` for stdout, None for no output."""

    json: options.JsonFile = None
    html: options.HtmlFile = None
    open_page: options.OpenPage = False
    force: options.Force = False
    quiet: options.Quiet = False
    verbose: options.Verbose = False

    @property
    def progress(self) -> ProgressForm:
        """How to show the progress."""
        return "lines" if self.verbose else "none" if self.quiet else "bar"

    @property
    def paths(self) -> tuple[Path | None, ...]:
        """The files to write."""
        return (self.json, self.html)

    def check(self, *sources: Path, others: Iterable[Path | None] = ()) -> None:
        """Refuse outputs that cannot be written or are ``sources``, before anything runs."""
        paths = (*self.paths, *others)
        check_not_input(paths, *sources)
        check_paths(*paths, force=self.force)

    def show(
        self,
        to_json: Writer,
        to_html: Writer,
        make_document: Callable[[], Document],
        *others: tuple[Path | None, Writer],
    ) -> None:
        """Write the files, print the answer unless a file is stdout, and open the page."""
        if not write_all((self.json, to_json), (self.html, to_html), *others):
            print_answer(make_document(), quiet=self.quiet)
        if self.open_page:
            open_in_browser(None if self.html == DASH else self.html, to_html)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs(PageOutputs):
    """Options of the outputs of a result."""

    csv: options.CsvFile = None
    markdown: options.MarkdownFile = None
    export: Annotated[
        list[Path] | None,
        options.in_result(
            "Write a file for another tool, by its ending: .graphml, .graph.json, .perfetto.json, "
            ".speedscope.json, .pb.gz (pprof), .parquet. Repeatable."
        ),
    ] = None
    max_peak: Annotated[
        str | None,
        options.in_result("Exit with 3 if the allocated peak is above this size, such as 10GiB."),
    ] = None

    @property
    def paths(self) -> tuple[Path | None, ...]:
        """The files to write."""
        return (self.json, self.html, self.csv, self.markdown, *(self.export or ()))

    @property
    def has_files(self) -> bool:
        """Whether there is any output besides the terminal's tables."""
        return self.open_page or any(path is not None for path in self.paths)

    @property
    def max_peak_bytes(self) -> int | None:
        """The highest allocated peak that is allowed; None for any."""
        return None if self.max_peak is None else parse_bytes(self.max_peak)

    def writers(self, result: Result) -> Iterator[tuple[Path | None, Writer]]:
        """Yield each file with the function that writes it."""
        markdown = partial(result.to_markdown, max_peak_bytes=self.max_peak_bytes)
        writers = (result.to_json, result.to_html, result.to_csv, markdown)
        yield from zip(self.paths, writers, strict=False)
        yield from ((path, result.export) for path in self.export or ())

    def check(self, *sources: Path, others: Iterable[Path | None] = ()) -> None:
        """Refuse outputs that cannot be written or are ``sources``, before anything runs."""
        _ = self.max_peak_bytes
        if self.export:
            from analyzer.report.other_formats import check_export

            for path in self.export:
                check_export(path)
        PageOutputs.check(self, *sources, others=others)


def check_paths(*paths: Path | None, force: bool) -> None:
    """Refuse files that cannot be written, before anything runs; ask about those that exist."""
    named: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path == DASH:
            check_open()
        else:
            check_output(path)
            if not is_regular(path):
                continue  # a pipe or /dev/null takes several outputs
        real = Path(path if path == DASH else os.path.realpath(path))
        if real in named:
            name = "Standard output" if path == DASH else str(path)
            raise InputError(f"{name} is named twice.", hint="Give each output its own file.")
        named.add(real)
        if path != DASH and not force and path.is_file() and path.stat().st_size:
            _ask_to_replace(path)


def _ask_to_replace(path: Path) -> None:
    """Ask whether a file may be replaced."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{path} exists. Replace it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise InputError(f"{path} exists.", hint="Add --force to replace it, or name another file.")


def check_not_input(paths: Iterable[Path | None], *sources: Path) -> None:
    """Refuse outputs that would overwrite an input: a source, or a known file in a source folder."""
    for path in paths:
        if path is None or path == DASH or not path.is_file():
            continue
        real = Path(os.path.realpath(path))
        for source in sources:
            whole = Path(os.path.realpath(source))
            if real == whole or (whole in real.parents and real.name.endswith(_INPUT_ENDINGS)):
                raise InputError(f"{path} is an input of this command.", hint="Name another file.")


def write_all(*writers: tuple[Path | None, Writer]) -> bool:
    """Write the files that are named and report each; return whether one of them was stdout."""
    to_stdout = False
    for path, write in writers:
        if path is None:
            continue
        if path == DASH:
            to_stdout = True
            write_to_stdout(write)
        else:
            write(path)
            report_written(path)
            to_stdout = to_stdout or is_stdout(path)
    return to_stdout


def report_written(path: Path, suffix: str = "") -> None:
    """Print on stderr that a file or folder was written."""
    print(f"Wrote {path}{suffix}", file=sys.stderr)


def print_answer(document: Document, *, quiet: bool, headline: str = "") -> None:
    """Print a document, or with ``quiet`` only the headline; empty for the document's own."""
    from analyzer.report.render.terminal import print_terminal

    with printing():
        if quiet:
            print(printable(headline or document.headline, _LONGEST_LINE))
        else:
            print_terminal(document, terminal())


def deliver(result: Result, outputs: Outputs) -> None:
    """Write the files and print the report."""
    from analyzer.report.report_sections import report_document
    from analyzer.report.summary import summarize

    if not write_all(*outputs.writers(result)):
        headline = summarize(result.report).headline
        print_answer(report_document(result.report), quiet=outputs.quiet, headline=headline)
    if outputs.open_page:
        named = None if outputs.html == DASH else outputs.html
        saved = result.folder / REPORT_HTML if result.folder else None
        open_in_browser(named or saved, result.to_html)
    limit, peak = outputs.max_peak_bytes, result.report.peak.allocated_bytes
    if limit is not None and peak > limit:
        raise LimitError(peak_limit_words(peak, limit))


def open_in_browser(page: Path | None, write: Writer) -> None:
    """Open ``page`` in the browser; if it does not exist, write one into a temporary folder."""
    if page is None or not page.is_file():
        page = Path(tempfile.mkdtemp(prefix="analyze-")) / REPORT_HTML
        write(page)
        report_written(page)
    webbrowser.open(page.resolve().as_uri())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Options that choose the run folder."""

    out: options.Out = None
    no_save: Annotated[
        bool,
        options.in_result(
            "Write no run folder, only the files named here.", "--no-save", is_rare=True
        ),
    ] = False

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.no_save:
            options.refuse_options(
                "and --no-save exclude each other", "Leave one out.", out=self.out
            )

    def refuse_for(self, spec: TargetSpec) -> None:
        """Refuse a run folder for a trace that is only opened."""
        options.refuse_options(
            f"cannot be used: {spec.text} is only opened",
            "Leave it out; --json FILE and --html FILE write the result.",
            out=self.out,
        )

    @contextlib.contextmanager
    def folder_for(self, spec: TargetSpec) -> Iterator[Path]:
        """Yield the folder's path; with --no-save it is temporary."""
        if not self.no_save or spec.kind is TargetKind.TRACE:
            yield self.out or make_default_path(spec)
            return
        with tempfile.TemporaryDirectory(prefix="analyze-") as temporary:
            yield Path(temporary) / spec.name

    def conclude(
        self,
        result: Result,
        spec: TargetSpec,
        folder: Path,
        outputs: Outputs,
        contents: str = "report.html, report.json, and a TensorBoard logdir",
    ) -> None:
        """Write the files, print the report and the run folder with its contents, if there is one."""
        deliver(replace(result, folder=None) if self.no_save else result, outputs)
        if self.no_save or spec.kind is TargetKind.TRACE:
            return
        where = result.folder or folder
        report_written(where, f" ({contents}).")
        if not outputs.quiet:
            command = "estimate" if result.report.kind is Kind.ESTIMATE else "trace"
            print(f"Open it again: analyze {command} {where}", file=sys.stderr)

"""Output of a result: the terminal, and files named by options."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from msgspec import structs

from analyzer.cards.catalogue import gpus_named
from analyzer.cli.shared_options import (
    Csv,
    Force,
    Full,
    Json,
    Markdown,
    Quiet,
    Verbose,
    option,
    refuse_options,
)
from analyzer.cli.stdout import (
    DASH,
    ProgressForm,
    check_open,
    print_news,
    printing,
    terminal,
    write_to_stdout,
)
from analyzer.model.contract.child_messages import TargetKind, TargetSpec
from analyzer.model.contract.report_file import REPORT_HTML, Kind, ReportFile
from analyzer.model.errors import InputError, LimitError
from analyzer.model.units import parse_bytes
from analyzer.report.output_files import check_output, is_regular
from analyzer.report.render.sections import Document
from analyzer.report.result import Result
from analyzer.report.untrusted import printable
from analyzer.simulated_card.card_environment import normalize_cards

_NAMED = 5  # other cards of the same name that are printed
Writer = Callable[[Path], object]


@dataclass(frozen=True, kw_only=True)
class PageOutputs:
    """Options of the outputs of an answer; the path ``-`` is standard output."""

    json: Json = None
    full: Full = False
    html: Annotated[Path | None, option("Write the result as an HTML page.")] = None
    force: Force = False
    quiet: Quiet = False
    verbose: Verbose = False

    @property
    def progress(self) -> ProgressForm:
        """How to show the progress."""
        return "lines" if self.verbose else "none" if self.quiet else "bar"

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files to write."""
        return tuple(one for one in vars(self).values() if isinstance(one, Path))

    def check(self, *sources: Path, others: Iterable[Path | None] = ()) -> None:
        """Raise an InputError for an output that cannot be written or would replace a source."""
        check_paths(*self.paths, *others, force=self.force, sources=sources)

    def show(
        self,
        to_json: Writer,
        to_html: Writer,
        make_document: Callable[[], Document],
        *others: tuple[Path | None, Writer],
    ) -> None:
        """Write the files, print the answer unless a file is stdout."""
        json = json_output(self.json, to_json, is_full=self.full)
        if write_all(json, (self.html, to_html), *others):
            return

        document = make_document()
        if self.html and document.next_command.endswith("--html report.html"):
            document = replace(document, next_command="")  # it writes the page

        print_answer(document, quiet=self.quiet, is_verbose=self.verbose)


@dataclass(frozen=True, kw_only=True)
class Outputs(PageOutputs):
    """Options of the outputs of a result."""

    csv: Csv = None
    markdown: Markdown = None
    graph: Annotated[
        Path | None,
        option("Write ops and tensors as node-link JSON, for networkx."),
    ] = None
    max_peak: Annotated[
        str | None,
        option("Exit with 3 if the requested peak is above this size, such as 10GiB."),
    ] = None

    @property
    def max_peak_bytes(self) -> int | None:
        """The highest requested peak that is allowed; None for any."""
        if self.max_peak is None:
            return None

        return parse_bytes(self.max_peak)

    def __post_init__(self) -> None:
        """Raise an InputError for a peak that is no size, before anything runs."""
        _ = self.max_peak_bytes

    def deliver(self, result: Result) -> None:
        """Write the files and print the report."""
        from analyzer.report.report_sections import report_document

        is_stuck = not result.report.next_command or lacks_target(result.report)
        if is_stuck and result.folder is not None:
            command = name_command(result.report)
            words = ("analyze", command, str(result.folder), "--html", REPORT_HTML)
            has_page = (result.folder / REPORT_HTML).exists()
            following = "" if has_page else shlex.join(words)
            report = structs.replace(result.report, next_command=following)
            result = replace(result, report=report)

        limit = self.max_peak_bytes
        self.show(
            result.to_json,
            result.to_html,
            lambda: report_document(result.report, limit),
            (self.csv, result.to_csv),
            (self.markdown, partial(result.to_markdown, max_peak_bytes=limit)),
            (self.graph, result.to_graph),
        )

        if limit is not None and result.report.peak.requested_bytes > limit:
            raise LimitError(f"The peak is above --max-peak {self.max_peak}.")


def lacks_target(report: ReportFile) -> bool:
    """Return whether the file of a report's target is missing, as of a trace from elsewhere."""
    target = report.target
    if target.kind not in (TargetKind.FILE, TargetKind.SCRIPT):
        return False

    script = target.text.partition(" -- ")[0]
    file = script.rpartition(":")[0] if target.kind == TargetKind.FILE else script
    return not Path(file).exists()


def name_command(report: ReportFile) -> str:
    """Return the command that opens the folder of a report."""
    return "estimate" if report.kind is Kind.ESTIMATE else "trace"


def check_paths(
    *paths: Path | None, force: bool, sources: tuple[Path, ...] = ()
) -> None:
    """Refuse files that cannot be written, are inputs, exist, or are named twice."""
    wanted = [path for path in paths if path is not None]
    for path in wanted:
        is_dash = path == DASH
        if is_dash:
            check_open()
        else:
            check_output(path)
            if path.resolve() in [source.resolve() for source in sources]:
                hint = "Name another file."
                raise InputError(f"{path} is an input of this command.", hint)

        if wanted.count(path) > 1 and (is_dash or is_regular(path)):
            name = "Standard output" if is_dash else str(path)
            hint = "Give each output its own file."
            raise InputError(f"{name} is named twice.", hint)

        is_new = is_dash or not path.is_file() or not path.stat().st_size
        if not (force or is_new):
            hint = "Add --force to replace it, or name another file."
            raise InputError(f"{path} exists.", hint)


def json_output(
    path: Path | None,
    write: Writer,
    *,
    is_full: bool,
) -> tuple[Path | None, Writer]:
    """Return a JSON output for ``write_all``; standard output gets the most important rows."""

    def write_short(file: Path) -> None:
        write(file)
        from analyzer.report.short_json import shorten_file

        shorten_file(file)

    is_short = path == DASH and not is_full
    return path, write_short if is_short else write


def write_all(*writers: tuple[Path | None, Writer]) -> bool:
    """Write the files that are named and report each; return whether one of them was stdout."""
    has_stdout = False

    for path, write in writers:
        if path == DASH:
            has_stdout = True
            write_to_stdout(write)
        elif path is not None:
            write(path)
            print(f"Wrote {path}", file=sys.stderr)

    return has_stdout


def print_answer(document: Document, *, quiet: bool, is_verbose: bool = False) -> None:
    """Print a document without its details; with ``quiet`` only the headline."""
    from analyzer.report.render.terminal import print_terminal

    with printing():
        if quiet:
            print(printable(document.headline, 1000))
        else:
            print_terminal(document, terminal(), is_verbose=is_verbose)


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Options that choose the run folder."""

    out: Annotated[
        Path | None,
        option("Run folder and TensorBoard logdir; default traces/NAME-TIME."),
    ] = None
    no_save: Annotated[
        bool,
        option("Write no run folder, only the files named here.", "--no-save"),
    ] = False

    def check(self, spec: TargetSpec) -> None:
        """Refuse options that contradict each other, or a run folder for an existing trace."""
        if spec.is_trace:
            refuse_options(
                f"cannot be used: {spec.text} is only opened",
                "Leave it out; --json FILE and --html FILE write the result.",
                out=self.out,
            )

        if self.no_save:
            refuse_options(
                "and --no-save exclude each other",
                "Leave one out.",
                out=self.out,
            )

    @contextmanager
    def folder_for(self, spec: TargetSpec) -> Iterator[Path]:
        """Yield the folder's path; with --no-save it is temporary. A trace has its own."""
        if spec.is_trace:
            yield Path(spec.path)
            return

        if not self.no_save:
            from analyzer.capture.process.run_folders import make_default_path

            yield self.out or make_default_path(spec)
            return

        with TemporaryDirectory(prefix="analyze-") as temporary:
            yield Path(temporary) / spec.name

    def conclude(
        self,
        result: Result,
        spec: TargetSpec,
        folder: Path,
        outputs: Outputs,
    ) -> None:
        """Write the files, print the report and the run folder with its contents, if there is one."""
        outputs.deliver(replace(result, folder=None) if self.no_save else result)
        if self.no_save or spec.is_trace:
            return

        where = result.folder or folder
        print(f"Wrote {where}, with report.html and report.json.", file=sys.stderr)

        if not outputs.quiet:
            command = name_command(result.report)
            print(f"Open it again: analyze {command} {where}", file=sys.stderr)


def name_device(name: str, *, is_quiet: bool) -> None:
    """Print the answer's device if no card is named, or if several match the name of one."""
    line = "Answer for this machine's CPU; add --gpu NAME for a card."

    if name:
        if "," in normalize_cards(name):
            return

        card, *others = gpus_named(name)
        if not others:
            return

        rest = ", ".join(one.id for one in others[:_NAMED])
        line = (
            f"--gpu {printable(name, 40)} is {card.id} here, not {rest} (analyze gpus)."
        )

    print_news(line, is_quiet=is_quiet)

"""What the command line says of itself, and where results go."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from builders import COMMAND, analyze, listing, refusal, sample_folder


def shell(line: str, folder: Path, **environment: str) -> tuple[int, bytes, bytes]:
    """Run a line of bash in which $ANALYZE is the command; return code, stdout and stderr."""
    command = f"set -o pipefail; ANALYZE='{sys.executable} {COMMAND}'; {line}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=600,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("h1000", "Did you mean h100"),
        ("rtx4091", "Did you mean rtx-4090"),
        ("nonsense", "For example: t4"),
    ],
)
def test_a_card_that_is_none(name: str, says: str, folder: Path) -> None:
    said = refusal("estimate", "keras:VGG16", "--gpu", name)
    assert says in said
    assert "`analyze gpus list` shows all." in said


def test_an_option_written_wrong_is_corrected() -> None:
    done = analyze("trace", "x", "--batchsize", "4")
    assert done.code == 2
    assert "--batch-size" in done.err
    assert "'estimate'" in analyze("estimat", "x").err
    assert analyze("trace").code == analyze("no-such-command").code == 2


OPTIONS = (
    ["--batch-size", "32"],
    ["--shape", "8"],
    ["--optimizer", "adam"],
    ["--loss", "mse"],
    ["--mode", "infer"],
    ["--dtype-policy", "float32"],
    ["--jit"],
    ["--no-jit"],
    ["--steps", "3"],
    ["--device", "cpu"],
    ["--inter-op-threads", "1"],
)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option[0])
def test_a_trace_takes_no_option_of_a_capture(option: list[str], folder: Path) -> None:
    said = refusal("trace", sample_folder("infer"), *option)
    assert (
        f"{option[0]} cannot be used, because a trace shows the step as it ran." in said
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trace", "SAMPLE", "--out", "x"], "--out cannot be used: "),
        (["trace", "keras:VGG16", "--host", "a"], "--host cannot be used with"),
        (["trace", "keras:VGG16", "--no-save", "--out", "x"], "exclude each other"),
        (["trace", "SAMPLE", "--limit", "8"], "Write it as 8GiB or 8MiB."),
        (
            ["diff", "SAMPLE", "SAMPLE", "--fail-on-increase", "5"],
            "Write it as 5% or 5MiB.",
        ),
        (
            ["trace", "SAMPLE", "--html", "-", "--json", "-"],
            "Standard output is named twice.",
        ),
    ],
)
def test_what_would_be_passed_over_is_refused(
    arguments: list[str], says: str, folder: Path
) -> None:
    named = [
        str(sample_folder("infer")) if one == "SAMPLE" else one for one in arguments
    ]
    assert says in refusal(*named)
    assert listing(folder) == set()


def test_every_file_that_is_written_is_named(folder: Path) -> None:
    names = {
        "--json": "a.json",
        "--html": "a.html",
        "--csv": "a.csv",
        "--markdown": "a.md",
    }
    arguments = [word for pair in names.items() for word in pair]
    done = analyze("trace", sample_folder("infer"), "--quiet", *arguments)
    assert done.code == 0
    assert done.out.startswith("Peak ")
    assert done.out.count("\n") == 1
    assert done.err.splitlines() == [f"Wrote {name}" for name in names.values()]
    assert listing(folder) == set(names.values())


@pytest.mark.parametrize(
    ("option", "starts"),
    [
        ("--html", b"<!doctype html>"),
        ("--json", b"{"),
        ("--csv", b"allocator,"),
        ("--markdown", b"### "),
    ],
)
def test_a_dash_is_standard_output(option: str, starts: bytes, folder: Path) -> None:
    full = ["--full"] if option == "--json" else []
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, "ascii")
    done = analyze("trace", sample_folder("infer"), option, "-", *full, stdout=stream)
    assert (done.code, done.err) == (0, "")
    assert out.getvalue().startswith(starts)
    analyze("trace", sample_folder("infer"), "--quiet", option, "file")
    assert (folder / "file").read_bytes() == out.getvalue()


@pytest.mark.parametrize("rest", ["trace SAMPLE", "-h"])
def test_an_encoding_without_box_characters(rest: str, folder: Path) -> None:
    rest = rest.replace("SAMPLE", str(sample_folder("infer")))
    code, out, err = shell(f"$ANALYZE {rest}", folder, PYTHONIOENCODING="ascii")
    assert (code, err) == (0, b"")
    text = out.decode("ascii")
    if rest.startswith("trace"):
        assert "####" in text  # the bars of the categories


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    line = f"$ANALYZE trace {sample_folder('infer')} | head -c 1"
    code, out, err = shell(line, folder)
    assert (code, err, len(out)) == (0, b"", 1)


@pytest.fixture
def unread() -> Iterator[IO[str]]:
    """Return the end of a pipe that no one reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        yield stream


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--json", "-"], 0, ""),
        (["--max-peak", "1MiB"], 3, "is above --max-peak 1MiB"),
    ],
)
def test_a_limit_is_held_though_no_one_reads(
    options: list[str], code: int, says: str, unread: IO[str]
) -> None:
    done = analyze("trace", sample_folder("infer"), *options, stdout=unread)
    assert done.code == code
    assert says in done.err
    assert done.err.count("\n") == bool(says)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("rest", ["", "--json -"])
def test_a_full_standard_output_is_one_line(rest: str, folder: Path) -> None:
    line = f"$ANALYZE trace {sample_folder('infer')} {rest} > /dev/full"
    code, _, err = shell(line, folder)
    assert code == 2, err
    assert err.startswith(b"analyze: Standard output")
    assert b"No space left on device" in err
    assert err.count(b"\n") == 1


@pytest.mark.parametrize("rest", ["trace SAMPLE", "-h"])
def test_a_closed_standard_output_prints_nothing(rest: str, folder: Path) -> None:
    rest = rest.replace("SAMPLE", str(sample_folder("infer")))
    assert shell(f"$ANALYZE {rest} >&-", folder) == (0, b"", b"")
    assert shell(f"$ANALYZE {rest} <&- >&- 2>&-", folder)[0] == 0


def test_a_result_is_not_written_into_a_closed_standard_output(folder: Path) -> None:
    code, _, err = shell(
        f"$ANALYZE trace {sample_folder('infer')} --json - >&-", folder
    )
    assert code == 2
    assert err == b"analyze: Standard output is closed. Name a file instead of -.\n"

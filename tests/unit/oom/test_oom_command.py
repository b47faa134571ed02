"""``analyze oom`` as people call it: codes, files, and what is shown."""

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from builders import analyze, refusal
from rich.console import Console
from unit.oom.dump_wordings import FULL, PIECES, Scene, log_of

from analyzer.fitting.reproduction import append_reproduction
from analyzer.model.contract.oom_file import Reproduction
from analyzer.oom import OomDocument, OomReport, read_oom_log
from analyzer.oom.log_sections import build_sections
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.terminal import print_terminal

LOGS = Path(__file__).parent / "logs"
LOG = str(LOGS / "gpu_conv.log.gz")
HOSTILE = "</script><script>alert(1)</script>\x1b[31m[bold]{{7*7}}"


def report(text: str, name: str = "a log") -> OomReport:
    return read_oom_log(io.BytesIO(text.encode()), name)


def shown(found: OomReport, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    print_terminal(build_sections(found.report), console)
    return console.file.getvalue()


def page_of(found: OomReport) -> str:
    return to_page(build_sections(found.report, found.failures))


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log.gz")), ids=lambda log: log.stem)
def test_an_answer_has_28_lines_and_continues(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = analyze("oom", str(log)).out
    assert len(text.splitlines()) <= 28
    following = text.rpartition("Next: ")[2]
    assert following.startswith("analyze ")
    assert not re.search("TARGET|CARD|SCRIPT", following)
    with log.open("rb") as stream:
        (failure, *_) = read_oom_log(stream, str(log)).report.failures
    assert failure.remedies[0].action[:40] in text[:600]


def test_the_log_is_explained_and_its_json_is_the_document(tmp_path: Path) -> None:
    out = tmp_path / "oom.json"
    done = analyze("oom", LOG, "--json", str(out))
    assert done.code == 0
    assert "153.3 MiB too little" in done.out
    document = msgspec.convert(json.loads(out.read_text()), OomDocument)
    failure = document.failures[0]
    # 727.3 MiB in use and 450 MiB more fit a T4, the limit of 1 GiB was set
    assert failure.remedies[0].action.startswith("Raise the memory limit")
    assert document.next_command == "analyze fit TARGET --gpu t4 --limit 1024MiB"


def test_no_line_of_this_package_is_called_the_users() -> None:
    own = "/home/me/checkout/analyzer/capture/run/host_values.py"
    users = '"/home/me/train.py", line 42'
    text = log_of(FULL, "2.9")
    assert users in text
    text = text.replace(users, f'{users}, in <module>\n  File "{own}", line 9')
    assert report(text).report.failures[0].source == "/home/me/train.py:42"


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.log"],
        ["."],
        [LOG, "--batch-size", "4"],
        [LOG, "--reproduce"],
        [LOG, "--target", "missing", "--reproduce"],
        [LOG, "--json", LOG],
    ],
)
def test_bad_input_is_code_2(arguments: list[str], folder: Path) -> None:
    done = analyze("oom", *arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (log_of(FULL, "2.9"), "--gpu CARD"),
        ("epoch 1\n", "--gpu CARD"),
    ],
)
def test_a_reproduction_needs_a_failure_on_a_named_card(
    text: str, command: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    said = refusal("oom", log, "--target", "train.py:build", "--reproduce")
    assert f"analyze fit train.py:build {command}" in said


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("name", ["gpu_embed", "gpu_async_conv", "gpu_refused_growth"])
def test_no_number_is_cut_at_any_width(name: str, width: int) -> None:
    with (LOGS / f"{name}.log.gz").open("rb") as stream:
        found = read_oom_log(stream, name)
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    assert not re.search(r"\d…\d", text)
    failure = found.report.failures[0]
    assert f"{failure.asked.requested_bytes:,}" in text


def test_hostile_names_reach_no_terminal_and_no_page() -> None:
    op = HOSTILE.replace(" ", "")
    scene = Scene(PIECES.regions, PIECES.shape, PIECES.limit, op, "GPU_<b>_bfc")
    found = report(log_of(scene, "2.9"), HOSTILE)
    assert "\x1b" not in shown(found, 100)
    text = page_of(found)
    assert "<script>alert" not in text
    assert text.count("<script") == 1


def test_a_step_that_fails_otherwise_names_the_limit_of_its_changes() -> None:
    found = Reproduction(fails=True, runs=5, history_bytes=3 << 20)
    page = append_reproduction(build_sections(report("").report), found, 8)
    words = str(page.sections[1])
    assert "It ran 5 times" in words
    assert "None of the changes" in words
    assert "The changes are judged with 3.00 MiB less than the limit" in words

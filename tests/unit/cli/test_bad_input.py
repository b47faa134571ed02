"""What cannot be used: exit 2, one line that says what to do, no traceback, nothing left behind."""

import gzip
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import (
    COMMAND,
    Ended,
    TraceBuilder,
    analyze,
    listing,
    sample_folder,
    sample_trace,
    small_trace,
)

from analyzer.cli import app


def assert_refused(done: Ended, *says: str) -> None:
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("analyze: ")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    for text in says:
        assert text in done.err


def write(content: bytes, name: str = "a.xplane.pb") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def empty_folder(folder: Path) -> Path:
    (folder / "logs" / "train").mkdir(parents=True)
    (folder / "logs" / "train" / "events.out.tfevents.1.host").write_bytes(b"x")
    return folder / "logs"


def with_note(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        shutil.copytree(sample_folder("infer"), folder / "run")
        (folder / "run" / "run.json").write_text(text)
        return folder / "run"

    return make


def lost_note(folder: Path) -> Path:
    (folder / "run").mkdir()
    shutil.copy(sample_folder("infer") / "graph.json.gz", folder / "run")
    return folder / "run"


PACKED = sample_trace("infer").read_bytes()
WHOLE = gzip.decompress(PACKED)
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (write(b""), "is empty"),
    "text": (
        write(b"epoch 1: loss 0.5\n" * 40),
        "is not a profiler trace, or is truncated",
    ),
    "truncated": (write(WHOLE[: len(WHOLE) // 2]), "truncated"),
    "gzip cut short": (write(PACKED[:-900], "a.xplane.pb.gz"), "cannot be read"),
    "no memory events": (
        write(TraceBuilder().run("a:MatMul", 1, 2).bytes()),
        "TF_CPU_ALLOCATOR_USE_BFC=1",
    ),
    "no planes": (write(b"\x22\x04host"), "no profiler planes"),
    "missing": (
        lambda folder: (
            write(b"", "step.xplane.pb")(folder) and folder / "stp.xplane.pb"
        ),
        "stp.xplane.pb. Did you mean step.xplane.pb?",
    ),
    "folder without a trace": (empty_folder, "holds no trace"),
    "an image": (write(b"\x89PNG\r\n", "a.png"), "is neither a model nor a trace"),
    "a log": (write(b"ran out of memory", "a.log"), "explains a log"),
    "a report": (write(b"{}", "a.json"), "Give its run folder"),
    "a dot for a colon": (
        lambda folder: write(b"", "m.py")(folder) and Path("m.build"),
        "m.py:build?",
    ),
    "damaged note": (
        with_note('{"schema_version": 1, "variables": [{"path"'),
        "is damaged",
    ),
    "newer note": (with_note('{"schema_version": 99}'), "newer version"),
    "deeply nested note": (with_note("[" * 100_000), "is damaged"),
    "lost note": (lost_note, "is a run folder without run.json. Copy the whole folder"),
}


@pytest.mark.parametrize(("make", "says"), CASES.values(), ids=CASES)
def test_traces(make: Callable[[Path], Path], says: str, folder: Path) -> None:
    target = make(folder)
    before = listing(folder)
    done = analyze(
        "trace", target, "--html", "a.html", "--json", "a.json", "--csv", "a.csv"
    )
    assert_refused(done, says)
    assert listing(folder) == before


def test_an_estimate_or_a_trace_that_lost_its_note_is_named(folder: Path) -> None:
    assert_refused(
        analyze("estimate", lost_note(folder)), "is a run folder without run.json."
    )
    shutil.copytree(sample_folder("infer") / "plugins", folder / "run" / "plugins")
    opened = analyze("trace", folder / "run")
    assert opened.code == 0
    assert "run lacks run.json, so layers and categories are derived" in " ".join(
        opened.out.split()
    )


def test_a_package_that_cannot_be_imported_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "run_app", fail_import)
    assert_refused(
        analyze("gpus"),
        "cannot be imported: ImportError: libx.so: failed to map",
        "ulimit",
    )


def fail_import(*_: object) -> int:
    raise ImportError("libx.so: failed to map segment from shared object\nmore")


@pytest.mark.tf
@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not enforce the limit"
)
def test_too_little_address_space_for_tensorflow_is_one_line(folder: Path) -> None:
    (folder / "model.py").write_text("def build(): ...\n")
    ended = subprocess.run(
        ["bash", "-c", "ulimit -v 300000 && exec $0 $1 trace model.py:build", sys.executable, COMMAND],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert_refused(
        Ended(ended.returncode, ended.stdout, ended.stderr), "too little memory, see"
    )


def test_a_trace_that_lost_its_last_parts_is_still_read(folder: Path) -> None:
    # GIVEN a cut between two planes
    trace = small_trace()
    whole = len(trace.bytes())
    trace.event("kernel", 900, plane="/device:GPU:0")
    (folder / "a.xplane.pb").write_bytes(trace.bytes()[:whole])
    # WHEN it is opened THEN what is there is shown
    assert analyze("trace", "a.xplane.pb").code == 0


OPTIONS: dict[str, tuple[list[str], str]] = {
    "mode": (["--mode", "fly"], "Use train or infer or generate."),
    "device": (["--device", "tpu"], "Use cpu or gpu."),
    "shape": (["--shape", "image=a,b"], "is not a shape"),
    "max peak": (["--max-peak", "lots"], "is not a size"),
    "host": (["--host", "other"], "The run has no host 'other'."),
    "allocator": (["--allocator", "other"], "It has bfc_cpu_allocator_for_gpu."),
}


@pytest.mark.parametrize(("options", "says"), OPTIONS.values(), ids=OPTIONS)
def test_options(options: list[str], says: str, folder: Path) -> None:
    assert_refused(analyze("trace", sample_folder("infer"), *options), says)
    assert listing(folder) == set()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--batch-size", "0"], "equal to 1. analyze trace --help"),
        (["--gpu", "t4,,t4"], "--gpu t4,,t4 has an empty name."),
    ],
)
def test_options_of_a_capture(options: list[str], says: str, folder: Path) -> None:
    assert_refused(analyze("trace", "keras:VGG16", *options), says)


TARGETS: dict[str, tuple[str, str]] = {
    "nothing": ("nothing", "There is no nothing."),
    "no file": ("gone.py:build", "There is no file gone.py."),
    "no name": ("model.py:", "has no name after the colon"),
    "no application name": ("keras:Res Net", "keras:ResNet50"),
    "empty": ("", "The target is empty. Give keras:NAME"),
    "application with a dot": ("keras.ResNet50", "Did you mean keras:ResNet50?"),
    "application without keras": (
        "ResNet50",
        "Did you mean keras:ResNet50, or file.py:ResNet50?",
    ),
    "two colons": ("model.py::build", "Did you mean model.py:build?"),
}


@pytest.mark.parametrize(("target", "says"), TARGETS.values(), ids=TARGETS)
def test_targets(target: str, says: str, folder: Path) -> None:
    (folder / "model.py").write_text("build = 1\n")
    assert_refused(analyze("trace", target), says)
    assert listing(folder) == {"model.py"}


def test_out_is_a_file(folder: Path) -> None:
    (folder / "out").write_text("mine")
    assert_refused(analyze("trace", "keras:VGG16", "--out", "out"), "out is a file")
    assert listing(folder) == {"out"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_out_holds_something_of_the_users(force: list[str], folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("mine")
    done = analyze("trace", "keras:VGG16", "--out", "out", *force)
    assert_refused(done, "holds no run to replace" if force else "out is not empty")
    assert listing(folder) == {"out", "out/thesis.tex"}


@pytest.mark.skipif(os.name != "posix", reason="/proc takes no folders")
def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    assert_refused(
        analyze("trace", "keras:VGG16", "--out", "/proc/no/out"), "cannot be written"
    )
    assert listing(folder) == set()


def test_a_graph_of_a_run_without_one(folder: Path) -> None:
    done = analyze(
        "trace", sample_folder("eager"), "--graph", "a.graph.json", "--quiet"
    )
    assert_refused(done, "no graph")
    assert listing(folder) == set()


def test_an_old_run_that_ran_out_of_memory_opens_without_an_error(folder: Path) -> None:
    done = analyze("trace", sample_folder("oom"))
    assert (done.code, done.err) == (0, "")
    assert "Out of memory: a request for 16.00 MiB failed" in done.out


MISTAKES: dict[str, tuple[list[str], str]] = {
    "a script that Python cannot read": (
        ["trace", "broken.py"],
        "broken.py:1: SyntaxError: '(' was never closed. Correct this line.",
    ),
    "an option of the script": (
        ["trace", "model.py", "--epochs", "2"],
        "Options of a script follow --: analyze trace train.py -- --epochs 2.",
    ),
    "a file as a module": (["trace", "-m", "model.py"], "or leave out -m for a file."),
    "a zip as a trace": (["trace", "run.zip"], "Unpack it, and name the folder."),
    "a zip as a log": (
        ["oom", "run.zip"],
        "run.zip is a zip archive. Unpack it first.",
    ),
    "a trace as a log": (["oom", "a.xplane.pb"], "analyze trace a.xplane.pb explains"),
    "a part of a remedy's name": (
        ["estimate", "keras:VGG16", "--what-if", "sgd"],
        "Did you mean optimizer-sgd?",
    ),
    "several unknown cards": (
        ["estimate", "keras:VGG16", "--gpu", "2xt4x"],
        "Did you mean t4",
    ),
}


@pytest.mark.parametrize(("words", "says"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_of_newcomers(words: list[str], says: str, folder: Path) -> None:
    (folder / "broken.py").write_text("x = (1\n")
    (folder / "model.py").write_text("build = 1\n")
    (folder / "a.xplane.pb").touch()
    with zipfile.ZipFile(folder / "run.zip", "w") as archive:
        archive.writestr("a", "b")
    before = listing(folder)
    assert_refused(analyze(*words), says)
    assert listing(folder) == before

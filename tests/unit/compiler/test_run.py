"""The compiler's child: whatever happens in it, one line comes out and nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from analyzer.cards import find_gpu
from analyzer.cards import xla_compiler as plugin
from analyzer.cards.xla_compiler import Compiler, find_compiler
from analyzer.model.errors import CompilerUnavailable
from analyzer.simulate.compiler import compile_child as run
from analyzer.simulate.compiler.compile_child import Compilation, compile_in_child


def answering(text: str) -> str:
    return f"import sys; open(sys.argv[1] + '/answer.json', 'w').write({text!r})"


TOTALS: Final = (
    '{"code_bytes": 0, "argument_bytes": 8, "output_bytes": 8, "alias_bytes": 8, "temp_bytes": 4}'
)


def compile_it(tmp_path: Path, library: str = "none.so", **how: Any) -> None:
    compiler = Compiler(tmp_path / library, tmp_path, "some compiler 1.0")
    compile_in_child(b"module", Compilation(gpu=find_gpu("t4"), compiler=compiler, **how))


def a_child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(run, "_WORKER", (sys.executable, "-c", code))


def folder_in(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("print('F0000 00:00 7 x.cc:3] Check failed: a < b'); import os; os.abort()", "a < b"),
        ("raise SystemExit(3)", "status 3"),
        (
            answering('{"schema_version": 1, "refused": "No sm_1\\n\\nmore"}'),
            "refused: No sm_1",
        ),
        (
            answering(f'{{"schema_version": 1, "statistics": {TOTALS}}}'),
            "no buffer assignment",
        ),
        (answering('{"schema_version": 2, "refused": "No"}'), "it has version 2, expected 1"),
        (answering('{"schema_version": 1, "statistics": {}}'), "missing required field"),
        (answering('{"schema_version": 1}'), "either the compiler's totals or an error"),
        (answering('{"schema_version": 1, "refu'), "cannot be read"),
    ],
)
def test_a_child_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, word: str
) -> None:
    a_child(monkeypatch, code)
    folder = folder_in(tmp_path)
    with pytest.raises(CompilerUnavailable) as caught:
        compile_it(tmp_path, folder=folder)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("library", ["missing.so", "empty.so"])
def test_a_library_that_is_none_is_refused_in_a_line(tmp_path: Path, library: str) -> None:
    (tmp_path / "empty.so").write_bytes(b"")
    folder = folder_in(tmp_path)
    with pytest.raises(CompilerUnavailable, match="cannot be loaded") as caught:
        compile_it(tmp_path, library, folder=folder)
    assert "\n" not in str(caught.value)
    assert not list(folder.iterdir())


def test_a_child_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_child(monkeypatch, "import time; time.sleep(1000)")
    folder = folder_in(tmp_path)
    with pytest.raises(CompilerUnavailable, match="did not finish within"):
        compile_it(tmp_path, folder=folder, time_out_s=0.2)
    assert not list(folder.iterdir())


def test_an_interrupt_leaves_no_child_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "pid"
    a_child(
        monkeypatch,
        f"import os, time; f = open({str(told)!r}, 'w'); f.write(str(os.getpid()) + ' '); "
        "f.close(); time.sleep(1000)",
    )
    folder = folder_in(tmp_path)

    def interrupt_once_it_runs(number: int, frame: Any) -> None:
        if told.is_file() and told.read_text().endswith(" "):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt_once_it_runs)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_it(tmp_path, folder=folder)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not list(folder.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_the_child_sees_our_flags_and_our_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--a_flag_of_the_user")
    told = tmp_path / "environment"
    a_child(
        monkeypatch,
        f"import os; open({str(told)!r}, 'w').write("
        "os.environ['XLA_FLAGS'] + ' ' + os.environ['TMPDIR'])",
    )
    with pytest.raises(CompilerUnavailable):
        compile_it(tmp_path, flags=("--one", "--two"))
    seen = told.read_text()
    assert "--one --two" in seen
    assert "user" not in seen
    assert not Path(seen.split()[-1]).exists()


def test_a_relative_folder_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a_child(
        monkeypatch,
        "import sys; from pathlib import Path; (Path(sys.argv[1]) / 'request.json').read_text()",
    )
    with pytest.raises(CompilerUnavailable, match="status 0"):
        compile_it(tmp_path, folder=Path())


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise plugin.PackageNotFoundError(name)

    monkeypatch.setattr(plugin, "distribution", missing)
    monkeypatch.setattr(plugin.sys, "platform", "linux")
    with pytest.raises(CompilerUnavailable, match=r"tf-memory-analyzer\[xla-gpu\]"):
        find_compiler()


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """The worker asks Linux for it before it loads anything."""
    if sys.platform != "linux":
        pytest.skip("Linux only")
    told = tmp_path / "pid"
    child = (
        "import os, time; from pathlib import Path; from analyzer.model.interrupts import "
        "die_with_parent; die_with_parent(); "
        f"Path({str(told)!r}).write_text(str(os.getpid()) + ' '); time.sleep(1000)"
    )
    parent = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"from pathlib import Path\nwhile not (Path({str(told)!r}).is_file() and "
        f"Path({str(told)!r}).read_text().endswith(' ')): time.sleep(0.01)"
    )
    import subprocess

    subprocess.run([sys.executable, "-c", parent], check=True, timeout=60)
    pid = int(told.read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the child lives on")

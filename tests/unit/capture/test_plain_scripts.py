"""A script is run as Python runs it: what it is given, what it writes, how it ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import COMMAND, listing, run_python


def run(
    folder: Path, code: str, *arguments: str, given: str = "", name: str = "script.py"
) -> subprocess.CompletedProcess[str]:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(code)
    words = (COMMAND, "trace", name, "--no-save", *arguments)
    return run_python(*words, cwd=folder, given=given)


def test_a_script_finds_what_python_would_give_it(tmp_path: Path) -> None:
    # GIVEN modules beside the script, one of them with the name of one that we need
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("WORD = 'helper'")
    (tmp_path / "sub" / "msgspec.py").write_text("WORD = 'mine'")
    done = run(
        tmp_path,
        "import os, sys, helper, msgspec, __main__\n"
        "print(__name__, __file__, sys.argv, os.getcwd() == sys.argv[2], input())\n"
        "print(sys.path[0] == os.path.dirname(os.path.realpath(__file__)), helper.WORD, msgspec.WORD)\n"
        "print(__main__.helper is helper)\n",
        *("--", "--epochs", str(tmp_path)),
        given="a line",
        name="sub/script.py",
    )
    arguments = ["sub/script.py", "--epochs", str(tmp_path)]
    assert done.stdout.splitlines() == [
        f"__main__ sub/script.py {arguments} True a line",
        "True helper mine",
        "True",
    ]
    # nothing was traced, and no check of a limit has passed
    assert done.returncode == 2
    assert "no step was traced" in done.stderr
    assert {path for path in listing(tmp_path) if not path.startswith("sub")} == set()


ENDS = {
    "sys.exit(7)": (7, "ended with exit code 7 before any step was traced."),
    "sys.exit('too bad')": (1, "too bad"),
    "os._exit(9)": (9, ""),
    "raise ValueError('mine')": (1, "ValueError: mine"),
    "raise KeyboardInterrupt": (130, "KeyboardInterrupt"),
    "os.kill(os.getpid(), 15)": (143, ""),
    "if os.fork() == 0: sys.exit(3)\nelse: print(os.wait()[1] >> 8)": (
        2,
        "no step was traced",
    ),
}


QUICK = (
    "sys.exit(7)",
    "os._exit(9)",
    "os.kill(os.getpid(), 15)",
)


@pytest.mark.parametrize(
    "code",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in ENDS],
)
def test_a_script_ends_as_it_would(tmp_path: Path, code: str) -> None:
    done = run(tmp_path, f"import os, sys\nprint('begun', flush=True)\n{code}\n")
    status, said = ENDS[code]
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith("begun")
    assert said in done.stderr
    assert (
        "analyzer/" not in done.stderr
    )  # no line of ours in the script's own traceback
    assert listing(tmp_path) == {"script.py"}


def test_a_script_that_cannot_be_compiled_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "def broken(:\n")
    assert done.returncode == 2
    assert done.stderr.startswith("analyze: script.py:1: SyntaxError: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_to_the_command_reaches_the_script(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    (tmp_path / "script.py").write_text(
        "import os, time\nif os.fork() == 0: time.sleep(3600)\n"
        "print(os.getpid(), flush=True)\ntime.sleep(3600)\n"
    )
    command = subprocess.Popen(
        [sys.executable, str(COMMAND), "trace", "script.py", "--no-save"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    script = int(command.stdout.readline())
    command.send_signal(number)
    assert command.wait(600) == status
    command.stdout.close()
    for _ in range(2000):
        if not Path(f"/proc/{script}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{script}").exists()


def test_a_module_runs_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "words.py").write_text("WORD = 'from the package'")
    code = "import sys\nfrom .words import WORD\nprint(__name__, WORD, sys.argv[1:])\n"
    (tmp_path / "pkg" / "train.py").write_text(code)
    words = ("trace", "--no-save", "-m", "pkg.train", "--", "--epochs", "2")
    done = run_python(COMMAND, *words, cwd=tmp_path)
    assert done.stdout == "__main__ from the package ['--epochs', '2']\n"


def test_the_scripts_own_usage_stands_alone(tmp_path: Path) -> None:
    code = "import argparse\np = argparse.ArgumentParser(prog='p')\np.parse_args()\n"
    done = run(tmp_path, code, "--", "--unknown")
    assert done.returncode == 2
    assert done.stderr == "usage: p [-h]\np: error: unrecognized arguments: --unknown\n"
    needs = code.replace("p.parse", "p.add_argument('--width', required=True)\np.parse")
    assert "Options of a script follow --" in run(tmp_path, needs).stderr

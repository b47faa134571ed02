"""Children that stand in for the one that runs TensorFlow: they say and do what a test asks for."""

import json
import os
import subprocess
import sys
from pathlib import Path

HEAD = """
import json, os, signal, subprocess, sys, time
def say(message, **fields):
    os.write(1, (json.dumps({"message": message, **fields}) + "\\n").encode())
def stage(name):
    say("stage", stage=name)
def done():
    say("done")
def fail(error, hint="", exit_code=2):
    say("failed", error=error, hint=hint, exit_code=exit_code)
def sleeper(*, session=True):
    # A process that would run for long after whoever started it, deaf to what is asked of it.
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(%MARK%)"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=session).pid
"""

_marks = iter(range(100_000, 200_000))


class Mark:
    """A number of seconds that no other process sleeps for: how strays are found again."""

    def __init__(self) -> None:
        self.text = f"{next(_marks)}.{os.getpid()}"

    def command(self, body: str) -> list[str]:
        """Return a command that runs ``body`` after ``HEAD``."""
        return [
            sys.executable,
            "-c",
            (HEAD + body).replace("%MARK%", self.text),
            self.text,
        ]

    def left(self) -> list[int]:
        """Return the processes that have the mark on their command line and have not ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if self.text.encode() in words and state not in "ZX":
                found.append(int(folder.name))
        return found


PARENT = """
import json, os, sys
from pathlib import Path
from analyzer.capture.process.child_process import Child
folder = Path(sys.argv[2])
child = Child(json.loads(sys.argv[1]), folder / "log", os.environ)
for message in child.messages():
    print(message, flush=True)
"""


def parent(command: list[str], folder: Path, root: Path) -> subprocess.Popen[bytes]:
    """Start a process that starts a child and waits for it."""
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(command), str(folder)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

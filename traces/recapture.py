"""Capture the sample traces anew: ``python traces/recapture.py [NAME …]``, from the checkout.

Each sample is one ``analyze trace`` of a model in ``models.py``; the trace is then packed, and what
can be made again from it (report, log) is removed.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from analyzer.tracing.parse.protobuf import Space

HERE = Path(__file__).parent

SAMPLES: dict[str, tuple[str, list[str], dict[str, str]]] = {
    # name: (function in models.py, options, environment)
    "cnn": ("cnn", ["--batch-size", "16"], {}),
    "transformer": ("transformer", ["--batch-size", "4"], {}),
    "lstm": ("lstm", ["--batch-size", "8"], {}),
    "jit": ("mlp", ["--batch-size", "64", "--jit"], {}),
    "eager": ("eager", ["--batch-size", "8"], {}),
    "oom": ("too_large", ["--batch-size", "16"], {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "48"}),
    "infer": ("cnn", ["--batch-size", "16", "--mode", "infer"], {}),
    "accumulation": ("accumulation", [], {}),
}


def main(names: list[str]) -> None:
    """Capture the named samples, or all."""
    for name in names or SAMPLES:
        function, options, environment = SAMPLES[name]
        out = HERE / name
        shutil.rmtree(out, ignore_errors=True)
        command = ["trace", f"traces/models.py:{function}", *options, "--out", f"traces/{name}"]
        done = subprocess.run(
            [sys.executable, "cli.py", *command, "--inter-op-threads", "1", "--quiet"],
            cwd=HERE.parent,
            env={**os.environ, **environment},
            check=False,
        )
        if done.returncode not in (0, 5):
            sys.exit(f"{name}: exit code {done.returncode}")
        pack(out)
        shown = " ".join([*(f"{key}={value}" for key, value in environment.items()), "analyze"])
        (out / "HOW.md").write_text(
            f"Captured by `{shown} {' '.join(command)} --inter-op-threads 1`, then packed by "
            "`traces/recapture.py`.\n\n"
            + "".join(f"- {key} {value}\n" for key, value in versions(out).items())
        )
        print(f"{name}: exit code {done.returncode}")


def pack(out: Path) -> None:
    """Gzip the trace under a neutral host name; drop what can be made again, and XLA's modules.

    The modules (plane ``/host:metadata``) hold no memory events, and the paths of this machine.
    """
    for trace in out.glob("plugins/profile/*/*.xplane.pb"):
        folder = out / "plugins" / "profile" / "run"
        space = Space.FromString(trace.read_bytes())
        kept = [plane for plane in space.planes if plane.name != b"/host:metadata"]
        content = Space(planes=kept, hostnames=[b"host"]).SerializeToString()
        shutil.rmtree(trace.parent)
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    for name in ("report.json", "report.html", "capture.log"):
        (out / name).unlink(missing_ok=True)


def versions(out: Path) -> dict[str, str]:
    """Return the versions that the run noted."""
    return dict(json.loads((out / "run.json").read_text())["versions"])


if __name__ == "__main__":
    main(sys.argv[1:])

"""Predicted against real memory: the accuracy protocol, through the product's own commands.

    python benchmarks/accuracy/accuracy.py --cache FOLDER [--runs 5] [--half tuning|held-out] [CASE...]
    python benchmarks/accuracy/accuracy.py --cache FOLDER --write accuracy-cpu.md --json accuracy.json

Makes the rows "requested peak, CPU" of docs/accuracy.md.
For each case ``analyze estimate`` and, in fresh processes, ``analyze trace`` of the same step: with one
inter-op thread, and a second series with TensorFlow's default threads, each held against the estimate
for that number of threads. The third step counts. What was
run is kept in the cache by case and source, so that a broken-off benchmark goes on where it was; what
is predicted is predicted anew each time. ``--no-run`` only scores what the cache holds.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accuracy_table as table

HERE = Path(__file__).parent
MODELS = HERE / "accuracy_models.py"
STEPS = ("accumulation", "gan")
"""Networks whose cases are steps with arguments of their own, made for the batch that they name."""
TUNING_CASES = """
    plain_16_sgd plain_32_adam plain_16_lion plain_16_accumulate vgg_4_adam vgg_8_momentum
    vgg_4_rmsprop resnet_8_adam resnet_8_sgd resnet_16_adafactor depthwise_8_rmsprop
    depthwise_16_adamw depthwise_8_adagrad encoder_8_adamw encoder_16_adam encoder_8_lion
    encoder_8_ema lstm_16_adam lstm_32_rmsprop lstm_16_sgd unet_4_adam unet_8_momentum
    unet_4_adafactor recommender_256_adam recommender_256_adagrad recommender_512_sgd half_16_adam
    half_32_momentum half_16_clipped accumulation_64_adam accumulation_256_sgd
    accumulation_64_rmsprop
"""
HELD_OUT_CASES = """
    dense_8_rmsprop dense_16_sgd dense_8_adam inception_8_adam inception_8_adafactor
    inception_16_momentum decoder_4_adamw decoder_8_adam decoder_8_adagrad vit_8_adamw vit_16_lion
    vit_8_sgd gru_16_adam gru_32_rmsprop gru_16_adagrad temporal_16_adam temporal_32_momentum
    temporal_16_lion autoencoder_16_adam autoencoder_16_sgd autoencoder_32_clipped gan_16_adam
    gan_32_rmsprop gan_16_sgd convnext_8_adamw convnext_16_lion convnext_8_momentum brain_8_adamw
    brain_16_sgd brain_8_ema swish_8_rmsprop swish_16_adam swish_8_accumulate
"""


TUNING, HELD_OUT = TUNING_CASES.split(), HELD_OUT_CASES.split()
THREADS = {"one": ("--inter-op-threads", "1"), "default": ()}
INTER_OP = (("one", 1), ("default", None))


@dataclass(frozen=True)
class Bench:
    """Where things are kept, and what may be run.

    Attributes:
        cache: The folder of what was run.
        runs: Fresh processes a case and series.
        may_run: False only scores what the cache holds.
    """

    cache: Path
    runs: int
    may_run: bool

    def batch(self, case: str) -> tuple[str, ...]:
        """Return the option of a case's batch size; some steps bring their own."""
        network, *rest = case.split("_")
        return () if network in STEPS else ("--batch-size", rest[0])

    def folder(self, case: str) -> Path:
        """Return the case's folder, which changes with the source of its network."""
        return self.cache / f"{case}-{_source_hash(MODELS, case.split('_')[0])}"

    def note(self, case: str) -> Path | None:
        """Return the folder of the estimate, made once for each state of the capture's source."""
        sources = sorted((HERE.parents[1] / "analyzer" / "capture").rglob("*.py"))
        key = _hash("".join(path.read_text(encoding="utf-8") for path in sources))
        out = self.folder(case) / f"note-{key}"
        if out.is_dir() or not self.may_run:
            older = sorted(
                self.folder(case).glob("note-*"), key=lambda path: path.stat().st_mtime
            )
            return out if out.is_dir() else (older[-1] if older else None)
        for old in self.folder(case).glob("note-*"):
            shutil.rmtree(old)
        options = ("--device", "cpu", "--no-jit", *self.batch(case), "-q")
        ended = _analyze("estimate", f"{MODELS}:{case}", *options, "--out", str(out))
        if ended.returncode:
            print(f"{case}: estimate: {ended.stderr.strip()[-300:]}", flush=True)
            return None
        return out

    def real(self, case: str, series: str) -> list[dict[str, Any]]:
        """Return what the runs of a series measured."""
        rows = []
        for number in range(self.runs):
            file = self.folder(case) / f"{series}-{number}.json"
            if not file.is_file() and self.may_run:
                row = self._run(case, series, self.folder(case) / f"{series}-{number}")
                if row is None:
                    break
                file.write_text(json.dumps(row), encoding="utf-8")
            if file.is_file():
                rows.append(json.loads(file.read_text(encoding="utf-8")))
        return rows

    def capped(self, case: str, series: str, need_bytes: int) -> bool | None:
        """Say whether a real run lives under a limit, rounded up to MiB; None where not run."""
        limit = -(-need_bytes // (1 << 20))
        file = self.folder(case) / f"capped-{series}-{limit}.json"
        if not file.is_file():
            if not self.may_run:
                return None
            environment = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit)}
            out = self.folder(case) / f"capped-{series}-{limit}"
            self._run(case, series, out, environment)
            done = json.loads((out / "run.json").read_text(encoding="utf-8"))
            lives = done["steps_done"] == 3 and not done["error"]
            file.write_text(json.dumps({"lives": lives}), encoding="utf-8")
            shutil.rmtree(out)
        return bool(json.loads(file.read_text(encoding="utf-8"))["lives"])

    def peers(self, case: str) -> dict[str, int]:
        """Return what other methods predict for the case."""
        file = self.folder(case) / "peers.json"
        if not file.is_file():
            if not self.may_run:
                return {}
            command = [sys.executable, str(HERE / "accuracy_peers.py"), case]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            if ended.returncode:
                print(f"{case}: peers: {ended.stderr.strip()[-300:]}", flush=True)
                return {}
            file.write_text(ended.stdout.splitlines()[-1], encoding="utf-8")
        return json.loads(file.read_text(encoding="utf-8"))

    def _run(
        self,
        case: str,
        series: str,
        out: Path,
        environment: dict[str, str] | None = None,
    ) -> dict[str, Any] | None:
        options = ("--no-jit", *self.batch(case), *THREADS[series], "-q", "--force")
        ended = _analyze(
            "trace",
            f"{MODELS}:{case}",
            *options,
            "--out",
            str(out),
            environment=environment or {},
        )
        if ended.returncode:
            if not environment:
                print(f"{case}: trace: {ended.stderr.strip()[-300:]}", flush=True)
            return None
        return table.summary(
            json.loads((out / "report.json").read_text(encoding="utf-8"))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder of what was run"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--half", choices=["tuning", "held-out"])
    parser.add_argument(
        "--no-run", action="store_true", help="only score what the cache holds"
    )
    parser.add_argument("--series", default="one,default", help="one, default or both")
    parser.add_argument(
        "--capped", action="store_true", help="real runs under the stated need"
    )
    parser.add_argument(
        "--peers", action="store_true", help="other methods' figures beside ours"
    )
    parser.add_argument("--write", type=Path, help="Markdown file for the tables")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(options.cache.resolve(), options.runs, not options.no_run)
    halves = {"tuning": TUNING, "held-out": HELD_OUT}
    chosen = options.cases or [
        case
        for half, cases in halves.items()
        if options.half in (None, half)
        for case in cases
    ]
    rows = []
    for case in chosen:
        row = score(bench, case, options)
        if row is not None:
            row["half"] = "tuning" if case in TUNING else "held-out"
            rows.append(row)
            print(table.line(row), flush=True)
    if not rows:
        raise SystemExit("Nothing to score.")
    print(table.totals(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.write:
        old = (
            options.write.read_text(encoding="utf-8") if options.write.is_file() else ""
        )
        _, heading, cards = old.partition(
            "\n## Cards: "
        )  # benchmarks/phantom/cards.py wrote it
        page = table.markdown(rows) + heading + cards
        options.write.write_text(page, encoding="utf-8")


def score(
    bench: Bench, case: str, options: argparse.Namespace
) -> dict[str, Any] | None:
    """Return the case's row; None where nothing is known of it."""
    from analyzer.session.opening import open_estimate

    bench.folder(case).mkdir(parents=True, exist_ok=True)
    real = {
        name: bench.real(case, name)
        for name in THREADS
        if name in options.series.split(",")
    }
    note = bench.note(case)
    if not any(real.values()) or note is None:
        return None
    told = {
        name: table.summary(open_estimate(note, inter_op=n).document)
        for name, n in INTER_OP
    }
    row = table.compare(case, told, real)
    if options.capped:
        for name, found in row["series"].items():
            found["capped_lives"] = bench.capped(case, name, found["need_bytes"])
    if options.peers:
        row["peers"] = bench.peers(case)
    return row


def _analyze(
    command: str, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE.parents[1] / "cli.py"), command, *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
    )


def _source_hash(models: Path, network: str) -> str:
    """Return a hash of the network's function and of all that it uses of the module."""
    text = models.read_text(encoding="utf-8")
    parts = {
        node.name: node
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    wanted, queue = set(), [network, "make"]
    while queue:
        name = queue.pop()
        if name in wanted or name not in parts:
            continue
        wanted.add(name)
        queue += [n.id for n in ast.walk(parts[name]) if isinstance(n, ast.Name)]
    return _hash("".join(ast.dump(parts[name]) for name in sorted(wanted)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


if __name__ == "__main__":
    main()

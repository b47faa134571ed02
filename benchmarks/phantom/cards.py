"""Estimates for cards against TensorFlow's own GPU runtime on cards that are not there.

    python benchmarks/phantom/cards.py --cache FOLDER [CASE ...] [--cards t4,l4] [--ways op,xla]
    python benchmarks/phantom/cards.py --cache FOLDER --no-run --write accuracy-cards.md

A case is a step, a card and a way to run it. Each is run by ``analyze
trace --gpu`` in a fresh process and estimated by ``analyze estimate --gpu``; the third step counts, and
with ``--steps`` every later one. With one inter-op thread runs repeat; with more of them what follows a
copy to or from the card runs beside the rest, so that order and peak may differ from step to step.
What was run is kept in the cache by case and by the phantom card's source, so that a broken-off
benchmark goes on where it was; the graph of an estimate is kept until the capture's source changes, and
what is predicted from it is predicted anew each time. ``--verdict`` runs each case again with the least
limit that the estimate states, and with 3 % less. ``--no-run`` only scores what the cache holds.

Figures: the rows "card" of docs/accuracy.md, benchmarks/results/accuracy-cards.md and ablation.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
NETWORKS: Final = "../accuracy/accuracy_models.py"
TUTORIALS: Final = "../accuracy/other_models.py"
OTHERS: Final = "packages.py"
CARDS: Final = ("t4", "a100-40gb-sxm", "h100-80gb-sxm")
WAYS: Final[dict[str, tuple[str, ...]]] = {
    "op": ("--no-jit",),
    "one": ("--no-jit", "--inter-op-threads", "1"),
    "xla": ("--jit",),
}
"""How a step is run: op by op, the same with one inter-op thread, compiled with XLA."""
WORDS: Final = {"op": "op by op", "one": "op by op, one thread", "xla": "XLA"}
ENDS: Final = {
    "requested": ("low_bytes", "high_bytes"),
    "allocated": ("allocated_low_bytes", "allocated_high_bytes"),
}
"""The ends of the range that an estimate states for each figure. That of the least limit is held against
runs under limits: a replay also counts narrow stretches under which a sequence succeeds by chance."""
BEGINS: Final = "<!-- written by benchmarks/phantom/cards.py -->"
ENDS_HERE: Final = "<!-- end of what is written -->"
MIB: Final = 1 << 20

STEPS: Final[dict[str, tuple[str, str]]] = {
    # vision
    "resnet": (NETWORKS, "resnet_8_adam"),
    "dense": (NETWORKS, "dense_8_adam"),
    "inception": (NETWORKS, "inception_8_adam"),
    "swish": (NETWORKS, "swish_8_rmsprop"),
    "convnext": (NETWORKS, "convnext_8_adamw"),
    "vit": (NETWORKS, "vit_8_adamw"),
    "unet": (NETWORKS, "unet_4_momentum"),
    "autoencoder": (NETWORKS, "autoencoder_16_clipped"),
    "vgg": (NETWORKS, "vgg_8_momentum"),
    # words and series
    "decoder": (NETWORKS, "decoder_4_adamw"),
    "encoder_ema": (NETWORKS, "encoder_8_ema"),
    "lstm": (NETWORKS, "lstm_32_rmsprop"),
    "gru": (NETWORKS, "gru_16_adam"),
    "temporal": (NETWORKS, "temporal_16_lion"),
    # embeddings, several optimizers, accumulation, mixed precision
    "recommender": (NETWORKS, "recommender_256_adagrad"),
    "gan": (NETWORKS, "gan_32_rmsprop"),
    "accumulation": (NETWORKS, "accumulation_256_sgd"),
    "half": (NETWORKS, "half_16_adam"),
    "brain": (NETWORKS, "brain_8_adamw"),
    # in the manner of tutorials
    "pix2pix": (TUTORIALS, "pix2pix"),
    "wgan_gp": (TUTORIALS, "wgan_gp"),
    "vae": (TUTORIALS, "vae"),
    "unet3d": (TUTORIALS, "unet3d"),
    "masked_language": (TUTORIALS, "masked_language"),
    "mlp_mixer": (TUTORIALS, "mlp_mixer"),
    "two_tower": (TUTORIALS, "two_tower"),
    "diffusion": (TUTORIALS, "diffusion"),
    "deep_and_cross": (TUTORIALS, "deep_and_cross"),
    "convlstm": (TUTORIALS, "convlstm"),
    "perceiver": (TUTORIALS, "perceiver"),
    # from packages of others
    "hub_bert": (OTHERS, "hub_bert"),
    "hub_gpt2": (OTHERS, "hub_gpt2"),
    "hub_llama": (OTHERS, "hub_llama"),
    "hub_roberta": (OTHERS, "hub_roberta"),
    "hub_vit": (OTHERS, "hub_vit"),
    "unet_attention": (OTHERS, "unet_attention"),
    "unet_plus": (OTHERS, "unet_plus"),
    "tcn_layer": (OTHERS, "tcn_layer"),
    # held back: none of these was looked at while rules were written
    "siamese": (TUTORIALS, "siamese"),
    "masked_autoencoder": (TUTORIALS, "masked_autoencoder"),
    "style_transfer": (TUTORIALS, "style_transfer"),
    "miniature_gpt": (TUTORIALS, "miniature_gpt"),
    "gmlp": (TUTORIALS, "gmlp"),
    "bahdanau": (TUTORIALS, "bahdanau"),
    "pointnet": (TUTORIALS, "pointnet"),
    "dlrm_sparse": (TUTORIALS, "dlrm_sparse"),
    "cyclegan": (TUTORIALS, "cyclegan"),
    "scaled": (TUTORIALS, "scaled"),
    "MobileNetV2": ("keras", "MobileNetV2"),
    "EfficientNetB0": ("keras", "EfficientNetB0"),
    "DenseNet121": ("keras", "DenseNet121"),
    "ResNet50": ("keras", "ResNet50"),
    "Xception": ("keras", "Xception"),
}
"""Name -> where its function is, and what it is called there."""


@dataclass(frozen=True)
class Case:
    """One step on one card, run one way."""

    step: str
    card: str
    way: str

    @property
    def name(self) -> str:
        return f"{self.step}-{self.card}-{self.way}"

    @property
    def target(self) -> str:
        place, name = STEPS[self.step]
        return f"keras:{name}" if place == "keras" else f"{place}:{name}"

    @property
    def options(self) -> tuple[str, ...]:
        """What says how the step is made; the same for a run and an estimate."""
        place, name = STEPS[self.step]
        parts = name.split("_")
        batch: tuple[str, ...] = ()
        if place == NETWORKS and parts[0] not in ("gan", "accumulation"):
            batch = ("--batch-size", parts[1])
        elif place in (OTHERS, "keras"):
            batch = ("--batch-size", "16")
        return ("--gpu", self.card, *WAYS[self.way], *batch)


@dataclass(frozen=True)
class Bench:
    """Where things are kept, and whether anything may be run."""

    cache: Path
    may_run: bool
    steps: int = 3

    def folder(self, case: Case) -> Path:
        place = HERE / STEPS[case.step][0]
        key = _hash([place]) if place.is_file() else "keras"
        return self.cache / f"{case.name}-{key}"

    def runs(self, case: Case, repeat: int) -> list[dict[str, Any]]:
        """Return what so many runs gave; without leave to run, all that were kept."""
        if not self.may_run:
            kept = sorted(self.folder(case).glob("ran-*-run*.json"))
            first = self.ran(case)
            again = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
            return later_steps([*([] if first is None else [first]), *again])
        more = ("--steps", str(self.steps)) if self.steps > 3 else ()
        found = [self.ran(case, *more, turn=turn) for turn in range(repeat)]
        return later_steps([one for one in found if one is not None])

    def ran(self, case: Case, *options: str, turn: int = 0) -> dict[str, Any] | None:
        """Return what a run on the card that is not there gave; None where nothing is known."""
        key = _hash((ROOT / "analyzer" / "phantom" / "native").rglob("*.[ch]"))
        again = (f"run{turn}",) if turn else ()
        file = self.folder(case) / ("-".join(("ran", key, *again, *options)) + ".json")
        if not file.is_file():
            if not self.may_run:
                older = sorted(
                    self.folder(case).glob("-".join(("ran", "*", *options)) + ".json")
                )
                older = [
                    path
                    for path in older
                    if len(path.stem.split("-")) == 2 + len(options)
                ]
                return (
                    json.loads(older[-1].read_text(encoding="utf-8")) if older else None
                )
            out = file.with_suffix("")
            said = _analyze("trace", case, out, *options)
            report = out / "report.json"
            if not report.is_file():
                print(f"{case.name}: trace: {said[-300:]}", flush=True)
                return None
            row = summary(json.loads(report.read_text(encoding="utf-8")))
            file.write_text(json.dumps(row), encoding="utf-8")
            shutil.rmtree(out)
        row = json.loads(file.read_text(encoding="utf-8"))
        return dict(row)

    def told(self, case: Case) -> dict[str, Any] | None:
        """Return what the estimate says, predicted anew; None where there is none."""
        from analyzer.session.opening import open_estimate

        places = (ROOT / "analyzer" / "capture", ROOT / "analyzer" / "graph")
        key = _hash(file for place in places for file in place.rglob("*.py"))
        out = self.folder(case) / f"note-{key}"
        if not out.is_dir() and self.may_run:
            for old in self.folder(case).glob("note-*"):
                shutil.rmtree(old)
            said = _analyze("estimate", case, out)
            if not out.is_dir():
                print(f"{case.name}: estimate: {said[-300:]}", flush=True)
        notes = [out] if out.is_dir() else sorted(self.folder(case).glob("note-*"))
        threads = 1 if case.way == "one" else None
        return (
            summary(open_estimate(notes[-1], inter_op=threads).document)
            if notes
            else None
        )


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared, of a report's document: bytes of the last step."""
    last = (document["steps"] or [document["peak"]])[-1]
    return {
        "requested": last["requested_bytes"],
        "allocated": last["allocated_bytes"],
        "later": [
            [step["requested_bytes"], step["allocated_bytes"]]
            for step in document["steps"][2:]
        ],
        "op": document["peak"]["op"],
        "resident": document["resident"]["requested_bytes"],
        "resident_allocated": document["resident"]["allocated_bytes"],
        "ever": document["peak_ever"]["requested_bytes"],
        "ever_allocated": document["peak_ever"]["allocated_bytes"],
        "least": (document["fragmentation"] or {}).get("minimum_limit_bytes"),
        "safe": (document["fragmentation"] or {}).get("safe_limit_bytes"),
        "range": document["uncertainty"],
        "error": (document.get("error") or {}).get("message", ""),
        "steps": len(document["steps"]),
    }


def later_steps(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each run once for each of its steps from the third on, with that step's peak."""
    return [
        one | {"requested": requested, "allocated": allocated}
        for one in runs
        for requested, allocated in one.get("later")
        or [[one["requested"], one["allocated"]]]
    ]


def score(
    bench: Bench, case: Case, *, verdict: bool, repeat: int
) -> dict[str, Any] | None:
    """Return the case's row: bytes and shares of the runs' median; None where a side is missing."""
    bench.folder(case).mkdir(parents=True, exist_ok=True)
    runs, told = bench.runs(case, repeat), bench.told(case)
    if not runs or told is None:
        return None
    ran = sorted(runs, key=lambda one: one["requested"])[(len(runs) - 1) // 2]
    row: dict[str, Any] = {
        "case": case.name,
        "step": case.step,
        "card": case.card,
        "way": case.way,
    }
    row["runs"] = len(runs)
    for key in (
        "requested",
        "allocated",
        "resident",
        "ever",
        "ever_allocated",
        "least",
    ):
        values = [one[key] for one in runs if one[key] is not None]
        real, said = statistics.median_low(values) if values else None, told[key]
        row[key] = real
        row[f"{key}_off"] = (said - real) / real if real and said is not None else None
        row[f"{key}_runs"] = [min(values), max(values)] if values else None
        row[f"{key}_beyond"] = (
            _beyond(said, values) if values and said is not None else None
        )
    for key in ENDS:
        row[f"{key}_inside"] = _inside(key, runs, told["range"] or {})
    row |= {
        "op": ran["op"],
        "told_op": told["op"],
        "told_least": told["safe"] or told["least"],
    }
    if verdict and row["told_least"]:
        row |= _tried(bench, case, told)
    return row


def _beyond(said: int, values: list[int]) -> float:
    """Return how far a figure lies outside what runs gave, a share of their median; signed."""
    outside = min(said - min(values), 0) + max(said - max(values), 0)
    return outside / statistics.median_low(values) if outside else 0.0


def _inside(
    key: str, runs: list[dict[str, Any]], stated: dict[str, Any]
) -> tuple[int, int, float | None]:
    """Return how many of the runs lie in the range that an estimate states, of how many, and its width.

    Args:
        key: Of what.
        runs: What they gave.
        stated: The ranges.
    """
    low, high = (stated.get(end) for end in ENDS[key])
    values = [one[key] for one in runs if one[key] is not None]
    if low is None or high is None:
        return 0, len(values), None
    return (
        sum(low <= value <= high for value in values),
        len(values),
        (high - low) / low,
    )


def _tried(bench: Bench, case: Case, told: dict[str, Any]) -> dict[str, Any]:
    """Run with the limit that the estimate says is enough, and with 3 % less."""
    least = -(-(told["safe"] or told["least"]) // MIB)
    found: dict[str, Any] = {}
    for name, limit in (("trains", least), ("trains_3_less", int(least * 0.97))):
        ran = bench.ran(case, "--limit", f"{limit}MiB")
        found[name] = None if ran is None else not ran["error"] and ran["steps"] == 3
    return found


def line(row: dict[str, Any]) -> str:
    """Return a row for the terminal."""
    parts = [f"{row['case']:32}"]
    for key in ("requested", "allocated", "resident", "ever", "least"):
        off = row[f"{key}_off"]
        parts.append(f"{key} {'-' if off is None else f'{off:+.3%}'}")
    tried = [f"{key}={row[key]}" for key in ("trains", "trains_3_less") if key in row]
    where = "" if row["op"] == row["told_op"] else f"  {row['op']} / {row['told_op']}"
    return "  ".join(parts + tried) + where


def spread(values: Iterable[float | None]) -> str:
    """Return median, 90th percentile and worst of how far values are off."""
    sizes = sorted(abs(value) for value in values if value is not None)
    if not sizes:
        return "-"
    high = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return f"{statistics.median(sizes):.3%} | {high:.2%} | {sizes[-1]:.2%}"


def section(rows: list[dict[str, Any]]) -> str:
    """Return the tables of ``benchmarks/results/accuracy-cards.md``."""
    lines: list[str] = []
    lines += ["| | cases | median | p90 | worst |", "|---|--:|--:|--:|--:|"]
    for way, words in WORDS.items():
        of = [row for row in rows if row["way"] == way]
        for key in ("requested", "allocated", "least"):
            known = [row[f"{key}_off"] for row in of if row[f"{key}_off"] is not None]
            what = "least limit, replayed" if key == "least" else f"{key} peak"
            lines.append(f"| {what}, {words} | {len(known)} | {spread(known)} |")
            several = [row[f"{key}_beyond"] for row in of if row.get("runs", 1) > 1]
            if several:
                told = f"the same, beyond the runs, {words}: cases of several"
                lines.append(f"| {told} | {len(several)} | {spread(several)} |")
    lines += ["", *_ranges(rows)]
    lines += [
        "",
        "| step | card | way | runs | requested | off by | allocated, off by | least limit, off by |",
    ]
    lines += ["|---|---|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        shown = " | ".join(
            _cell(row, key) for key in ("requested", "allocated", "least")
        )
        lines.append(
            f"| {row['step']} | {row['card']} | {WORDS[row['way']]} | {row.get('runs', 1)} | "
            f"{row['requested']:,} | {shown} |"
        )
    return "\n".join(lines) + "\n"


def _ranges(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of how many runs lie in the ranges that their estimates state."""
    lines = ["| runs inside the stated range | runs | inside | width, median | p90 |"]
    lines.append("|---|--:|--:|--:|--:|")
    for way, words in WORDS.items():
        for key in ENDS:
            counts = [row[f"{key}_inside"] for row in rows if row["way"] == way]
            runs, inside = sum(one[1] for one in counts), sum(one[0] for one in counts)
            if not runs:
                continue
            widths = sorted(one[2] for one in counts if one[2] is not None)
            high = min(len(widths) - 1, int(0.9 * len(widths)))
            told = (
                f"{statistics.median(widths):.1%} | {widths[high]:.1%}"
                if widths
                else "- | -"
            )
            lines.append(
                f"| {key} peak, {words} | {runs} | {inside} ({inside / runs:.0%}) | {told} |"
            )
    return lines


def _cell(row: dict[str, Any], key: str) -> str:
    """Return how far a figure is off, and by how much the runs differ from their median."""
    off, spread_of = row[f"{key}_off"], row.get(f"{key}_runs")
    if off is None:
        return "-"
    said = f"{off:+.3%}" if key == "requested" else f"{off:+.2%}"
    if not spread_of or row.get("runs", 1) == 1:
        return said
    least, most = ((end - row[key]) / row[key] for end in spread_of)
    return f"{said} ({least:+.1%} to {most:+.1%})"


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Put the tables between the two marks on a page."""
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGINS)
    _, _, after = rest.partition(ENDS_HERE)
    file.write_text(
        f"{before}{BEGINS}\n\n{section(rows)}\n{ENDS_HERE}{after}", encoding="utf-8"
    )


def chosen(names: list[str], cards: str, ways: str) -> Iterator[Case]:
    """Yield the cases asked for; a name is a step's, or a whole case's such as ``vit-t4-op``."""
    for card in cards.split(","):
        for way in ways.split(","):
            for step in STEPS:
                case = Case(step, card, way)
                if not names or step in names or case.name in names:
                    yield case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder of what was run"
    )
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument(
        "--verdict", action="store_true", help="run under the limit that is stated"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs of each case; the median counts"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps of each run")
    parser.add_argument(
        "--no-run", action="store_true", help="only score what the cache holds"
    )
    parser.add_argument(
        "--write", type=Path, help="Markdown file whose part about cards is written"
    )
    parser.add_argument("--rows", type=Path, help="JSON file for the rows")
    parser.add_argument(
        "--of", type=Path, nargs="+", help="score nothing: tables of such files"
    )
    options = parser.parse_args()
    bench = Bench(options.cache.resolve(), not options.no_run, options.steps)
    rows = [
        row
        for file in options.of or ()
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]
    for case in (
        () if options.of else chosen(options.cases, options.cards, options.ways)
    ):
        row = score(bench, case, verdict=options.verdict, repeat=options.repeat)
        if row is not None:
            rows.append(row)
            print(line(row), flush=True)
            if options.rows:
                options.rows.write_text(json.dumps(rows), encoding="utf-8")
    for way in WAYS:
        for key in ("requested", "allocated", "least"):
            print(
                way, key, spread(row[f"{key}_off"] for row in rows if row["way"] == way)
            )
    print(*_ranges(rows), sep="\n")
    if options.write:
        write(options.write, rows)


def _analyze(command: str, case: Case, out: Path, *options: str) -> str:
    """Run a command for a case; return what it said on standard error."""
    ended = subprocess.run(
        [
            *(
                sys.executable,
                str(ROOT / "cli.py"),
                command,
                case.target,
                *case.options,
                *options,
            ),
            *("--out", str(out), "-q", "--force"),
        ],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
    )
    return ended.stderr.strip()


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


if __name__ == "__main__":
    main()

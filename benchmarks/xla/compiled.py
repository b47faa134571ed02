"""Predicted against real memory of steps that XLA compiles for the CPU.

    python benchmarks/xla/compiled.py --out FOLDER [CASE...]     # some 40 minutes for all

``analyze estimate --device cpu --jit`` and ``analyze trace --jit`` of the same step in fresh processes;
the third step counts. Compiled steps do not vary, so that one run of each is enough. What lies in the
folder is not run again. Writes ``compiled.md`` beside this file where all cases are asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN = """
    mobilenet_8 efficientnet_4 densenet_4 resnet50v2_4 xception_4 decoder_4 decoder_4_infer translator_4
    bilstm_8 gru_16 recommender_128 unet_4 variational_64 half_16 transformer_8 loop_32 words_anew_32
"""
SHARED = """
    plain_16_sgd plain_32_adam vgg_4_rmsprop resnet_8_adam resnet_16_adafactor depthwise_8_rmsprop
    encoder_8_lion lstm_16_adam lstm_32_rmsprop unet_8_momentum recommender_256_adagrad half_8_adam
    half_16_clipped dense_8_adam inception_8_adam decoder_8_adam vit_16_lion gru_16_adam
    temporal_16_adam autoencoder_32_clipped convnext_8_adamw brain_8_ema swish_8_accumulate
    accumulation_64_adam gan_16_adam
"""
CASES = [*OWN.split(), *SHARED.split()]
TOLERANCE = 0.005


def command(case: str) -> list[str]:
    """Return the case's target and options."""
    if case in SHARED.split():
        return [
            f"{HERE.parent / 'accuracy' / 'accuracy_models.py'}:{case}",
            "--batch-size",
            case.split("_")[1],
        ]
    infer = case.endswith("_infer")
    name, _, batch = case.removesuffix("_infer").rpartition("_")
    mode = ["--mode", "infer"] if infer else []
    return [f"{HERE / 'compiled_models.py'}:{name}", "--batch-size", batch, *mode]


def report(kind: str, case: str, folder: Path) -> dict[str, Any]:
    """Return the report of an estimate or a trace; a trace is run once."""
    out = folder / f"{case}-{kind}"
    if kind == "estimate" or not (out / "report.json").is_file():
        device = ["--device", "cpu"] if kind == "estimate" else []
        options = ["--jit", *device, "--force", "-q", "--out", str(out)]
        tool = [sys.executable, str(HERE.parents[1] / "cli.py"), kind]
        subprocess.run([*tool, *command(case), *options], check=True, cwd=HERE)
    return json.loads((out / "report.json").read_text(encoding="utf-8"))


def row(case: str, folder: Path) -> tuple[str, bool]:
    """Return the case's line of the table, and whether both peaks are near enough."""
    real, told = report("trace", case, folder), report("estimate", case, folder)
    cells, holds = [], True
    for part in ("peak", "resident"):
        for figure in ("requested_bytes", "allocated_bytes"):
            off = told[part][figure] / real[part][figure] - 1
            if part == "peak":
                holds &= abs(off) <= TOLERANCE
                cells.append(f"{real[part][figure] / 2**20:.2f} | {off:+.3%}")
            else:
                cells.append(f"{off:+.3%}")
    peak = real["peak"]["requested_bytes"]
    categories = told["categories_at_peak"]
    worst = max(
        abs(categories[name] - size) / peak
        for name, size in real["categories_at_peak"].items()
    )
    return f"| {case} | {' | '.join(cells)} | {worst:.2%} |", holds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of what was run"
    )
    options = parser.parse_args()
    lines = [
        "Written by `benchmarks/xla/compiled.py`: real runs of steps that XLA compiles for the CPU,",
        "and how far the estimate lies from each: the peak in MiB, what is alive before the step, the",
        "category that is off most, as a share of the peak.",
        "",
        "| step | requested | error | allocated | error | resident requested | allocated | category |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missed = 0
    for case in options.cases or CASES:
        line, holds = row(case, options.out.resolve())
        missed += not holds
        lines.append(line)
        print(line, flush=True)
    if not options.cases:
        (HERE / "compiled.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Memory plans of XLA-compiled steps on cards that are not there: a table, and a check of four rows.

    python benchmarks/xla/xla_gpu.py [NAME ...]   # needs the extra xla-gpu; about ten minutes for all

Each step is lowered by TensorFlow and compiled for its CPU, then by XLA's own compiler for each card,
with Triton's matrix products and with cuBLAS'. Every plan's buffers are held against the compiler's
own totals on the way. The rows of ``REFERENCE`` were obtained earlier with another program, the same
compiler version (jax-cuda12-pjrt 0.9.0) and the same Keras models; ours have to lie within 0.5 %.
Writes ``xla_gpu.md`` and ``xla_gpu.json`` beside this file where all steps are asked for.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from analyzer.capture.process.launch import capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.cards.xla_compiler import find_compiler
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.simulate.compiler.compile_child import (
    CUBLAS_PRODUCTS,
    Compilation,
    plan_for_card,
)
from analyzer.simulate.compiler.plan_uncertainty import workspace_rise
from analyzer.simulate.compiler.step_plans import module_of
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.xla.buffer_plan import build_plan

HERE = Path(__file__).parent
CARDS = ("a100-80gb", "h100", "t4")
STEPS = {
    "MLP, batch 256": ("mlp", 256),
    "MLP, batch 8192": ("mlp", 8192),
    "LSTM, batch 256": ("lstm", 256),
    "decoder, batch 8": ("decoder", 8),
    "decoder, batch 32, bfloat16": ("decoder_bfloat16", 32),
    "ResNet50, batch 8": ("resnet50", 8),
    "ResNet50, batch 64": ("resnet50", 64),
    "ResNet50, batch 64, float16": ("resnet50_float16", 64),
    "MobileNetV2, batch 32": ("mobilenetv2", 32),
}
REFERENCE = {  # MB of temporaries: Triton's products / cuBLAS'
    ("ResNet50, batch 8", "a100-80gb"): (679, 679),
    ("ResNet50, batch 8", "h100"): (748, 768),
    ("ResNet50, batch 64", "a100-80gb"): (5312, 5312),
    ("ResNet50, batch 64", "h100"): (5010, 5016),
    ("ResNet50, batch 64, float16", "a100-80gb"): (2641, 2641),
    ("ResNet50, batch 64, float16", "h100"): (2641, 2641),
    ("MobileNetV2, batch 32", "a100-80gb"): (1814, 1814),
    ("MobileNetV2, batch 32", "h100"): (1830, 1830),
}
TOLERANCE = 0.005
UNDEFINED = {  # the same for steps whose models the reference does not define: XLA for the CPU, cards
    "MLP, batch 256": {"cpu": (11.6,), "a100-80gb": (8.4, 10.8), "h100": (8.4, 11.8)},
    "MLP, batch 8192": {"cpu": (273,), "a100-80gb": (147, 181), "h100": (147, 181)},
    "LSTM, batch 256": {"cpu": (262.8,), "a100-80gb": (231.9, 232.3), "h100": (231.9, 232.3)},
    "decoder, batch 8": {"cpu": (860.6,), "a100-80gb": (712.5, 712.5), "h100": (712.5, 711.9)},
    "decoder, batch 32, bfloat16": {
        "cpu": (2848,), "a100-80gb": (1684, 1678), "h100": (1611, 1606),
    },
}  # fmt: skip


def row_of(name: str) -> dict[str, Any]:
    """Lower and compile one step."""
    maker, batch = STEPS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        spec = parse_target(f"{HERE / 'xla_gpu_models.py'}:{maker}")
        options = CaptureOptions(batch_size=batch, device="gpu", gpu="t4", cpu_plan=True, jit=True)
        started = time.monotonic()
        capture(
            spec, options, folder, force=False, progress=lambda stage, share: None, kind="static"
        )
        noted_s = time.monotonic() - started
        (one,) = read_run(folder / "run.json").compiled
        assert one.plan is not None
        module = module_of(one)
        cpu = build_plan(one.plan, platform=one.platform)
        row: dict[str, Any] = {
            "step": name,
            "module_bytes": len(module),
            "cpu_temp_bytes": cpu.temp_bytes,
            "argument_bytes": cpu.argument_bytes,
            "note_s": round(noted_s, 1),
            "cards": {},
        }
        for card in CARDS:
            row["cards"][card] = on_card(module, card)
        return row


def on_card(module: bytes, card: str) -> dict[str, Any]:
    """Compile a module for one card with either product."""
    told: dict[str, Any] = {}
    for products in ("triton", "cublas"):
        started = time.monotonic()
        flags = CUBLAS_PRODUCTS if products == "cublas" else ()
        found = plan_for_card(module, Compilation(gpu=find_gpu(card), flags=flags))
        seconds = time.monotonic() - started
        hlo = read_hlo(found.compiled.hlo)
        calls = [one for one in hlo.instructions.values() if one.target.startswith("__cudnn$conv")]
        told[products] = {
            "temp_bytes": found.plan.temp_bytes,
            "argument_bytes": found.plan.argument_bytes,
            "output_bytes": found.plan.output_bytes,
            "alias_bytes": found.plan.alias_bytes,
            "workspace_rise_bytes": workspace_rise(hlo, found.plan) or 0,
            "convolutions": len(calls),
            "compile_s": round(seconds, 1),
        }
    return told


def deviations(rows: list[dict[str, Any]]) -> list[tuple[str, str, str, float, float]]:
    """Return (step, card, products, reference in MB, deviation as a share) of every known figure."""
    found = []
    for row in rows:
        for card, told in row["cards"].items():
            known = REFERENCE.get((row["step"], card))
            for products, reference in zip(told, known or (), strict=False):
                ours = told[products]["temp_bytes"] / 1e6
                # The reference is rounded to whole MB: half of one is no deviation.
                off = max(abs(ours - reference) - 0.5, 0.0) / reference
                found.append((row["step"], card, products, reference, off))
    return found


def undefined(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of how far our models lie from steps of the reference that it does not define."""
    tree = ast.parse((HERE / "xla_gpu_models.py").read_text(encoding="utf-8"))
    models = {
        node.name: (ast.get_docstring(node) or "").split("\n")[0]
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    lines = [
        "",
        "Of these steps the reference gives figures and no model. Ours (`xla_gpu_models.py`) are usual "
        "ones of that name, other models: the columns tell how far they lie from the reference.",
        "",
        "| step | our model | XLA for CPU | NVIDIA A100-SXM4-80GB | NVIDIA H100 80GB HBM3 |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        known = UNDEFINED.get(row["step"])
        if known is None:
            continue
        cells = []
        for place, references in known.items():
            told = row["cards"].get(place, {}).values() or [{"temp_bytes": row["cpu_temp_bytes"]}]
            cells.append(
                " / ".join(
                    f"{one['temp_bytes'] / 1e6 / reference - 1:+.1%}"
                    for one, reference in zip(told, references, strict=False)
                )
            )
        lines.append(f"| {row['step']} | {models[STEPS[row['step']][0]]} | {' | '.join(cells)} |")
    return lines


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = [
        f"Temporaries in MB (1e6 bytes), Adam, {find_compiler().version}: Triton's products / cuBLAS'; "
        "in brackets what cuDNN's workspaces could add. No card was at hand.",
        "",
        "| step | XLA for CPU | "
        + " | ".join(find_gpu(card).name for card in CARDS)
        + " | note, s |"
        " compile, s |",
        "|---|---|" + "---|" * len(CARDS) + "---|---|",
    ]
    for row in rows:
        cells = []
        for told in row["cards"].values():
            pair = " / ".join(
                f"{told[products]['temp_bytes'] / 1e6:.1f}" for products in ("triton", "cublas")
            )
            rise = told["triton"]["workspace_rise_bytes"] / 1e6
            cells.append(pair + (f" (+{rise:.0f})" if rise else ""))
        seconds = [told["triton"]["compile_s"] for told in row["cards"].values()]
        lines.append(
            f"| {row['step']} | {row['cpu_temp_bytes'] / 1e6:.1f} | {' | '.join(cells)} | "
            f"{row['note_s']} | {min(seconds)} to {max(seconds)} |"
        )
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    chosen = [name for name in STEPS if not names or any(part in name for part in names)]
    rows = []
    for name in chosen:
        rows.append(row_of(name))
        print(json.dumps(rows[-1]), flush=True)
    text = table(rows)
    failed = 0
    checks = ["", "| step | card | products | reference, MB | deviation |", "|---|---|---|---|---|"]
    for step, card, products, reference, off in deviations(rows):
        failed += off > TOLERANCE
        mark = "" if off <= TOLERANCE else " **over 0.5 %**"
        checks.append(f"| {step} | {card} | {products} | {reference} | {off:.2%}{mark} |")
    text += "\n".join([*checks, *undefined(rows)]) + "\n"
    print(text)
    if len(chosen) == len(STEPS):
        (HERE / "xla_gpu.md").write_text(text, encoding="utf-8")
        (HERE / "xla_gpu.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

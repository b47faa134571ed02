"""Measure this machine's NVIDIA GPU in a short visit, the most valuable steps first.

    visit.sh measure RECORD [--seconds 540] [--jobs 8]
    visit.sh measure RECORD --gpu h200                  # rehearse on a simulated card
    visit.sh measure RECORD --show

It writes the record of a card, at most 16 MiB, for the tables of ``real_cards.py``. Each result is
written at once, and a further call measures what the record lacks. No step starts if less time is left
than its plan states. Several steps run at a time, with pools that grow on demand.

Figures: "Real cards" in docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE))

from card_record import (  # noqa: E402
    SIMULATED,
    CardFacts,
    CardRecord,
    PeakRow,
    read_record,
    write_record,
)
from cudnn_sweep import Cudnn, CudnnError, list_convolutions, load_library, sweep  # noqa: E402
from tensorflow_sweep import read_choices  # noqa: E402

_CONTEXT_S: Final = 20
_CHOICES_S: Final = 60
_SWEEP_S: Final = 150
_LIMIT_CODE: Final = """
import json, tensorflow as tf
from tensorflow.python.client import device_lib
found = [one for one in device_lib.list_local_devices() if one.device_type == "GPU"]
print(json.dumps([tf.__version__, found[0].memory_limit if found else None]))
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step to trace.

    Attributes:
        target: A target of ``analyze``, or a function of ``card_models.py``.
        batch: Batch size; 0 for a step with inputs of its own.
        is_compiled: Whether XLA compiles it.
        seconds: Time of its trace, alone on 16 cores.
        processes: Processes that run it at the same time.
    """

    target: str
    batch: int
    is_compiled: bool = False
    seconds: int = 40
    processes: int = 1

    @property
    def name(self) -> str:
        """The name of its row."""
        target = self.target if ":" in self.target else f"card_models.py:{self.target}"
        return f"{target}, compiled" if self.is_compiled else target


def list_steps() -> Iterator[Step]:
    """Yield the steps of the plan, the most valuable first."""
    # Networks that decided no rule, op by op and compiled. XLA's autotuner shows in the first step.
    for target, batch, seconds in (
        ("recommender", 4096, 20),
        ("decoder", 16, 30),
        ("speech", 32, 30),
        ("vision_transformer", 64, 30),
        ("keras:Xception", 32, 40),
        ("keras:MobileNetV3Large", 64, 45),
        ("keras:ConvNeXtSmall", 16, 60),
        ("keras:EfficientNetV2S", 32, 70),
        ("keras:ResNet152V2", 32, 80),
        ("keras:NASNetMobile", 32, 90),
        ("keras:DenseNet201", 32, 90),
        ("keras:InceptionResNetV2", 16, 90),
    ):
        yield Step(target=target, batch=batch, seconds=seconds)
        if target != "speech":  # XLA does not compile cuDNN's recurrent layers
            yield Step(
                target=target, batch=batch, seconds=seconds + 30, is_compiled=True
            )
    # float16 with a loss scale that does not overflow, so that every step updates.
    yield Step(target="resnet50_half_scaled", batch=64, seconds=45)
    yield Step(target="decoder_half", batch=16, seconds=30)
    # Gradients of strided convolutions and of convolutions over three axes.
    yield Step(target="strided", batch=32, seconds=20)
    yield Step(target="three_axes_strided", batch=8, seconds=20)
    # Large steps.
    yield Step(target="decoder_1b", batch=4, seconds=60)
    yield Step(target="diffusion_unet", batch=16, seconds=60)
    # Values that decide sizes.
    yield Step(target="masked_tokens", batch=0, seconds=20)
    # Two processes on one card, each with a limit.
    yield Step(target="limited", batch=64, seconds=60, processes=2)


def read_context() -> CardFacts:
    """Return the card and its memory around the creation of a CUDA context.

    Raises:
        OSError: there is no driver, or it refuses.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        status = int(getattr(cuda, name)(*arguments))
        if status:
            raise OSError(f"{name} failed with CUDA's error {status}")

    name, device, context = ctypes.create_string_buffer(256), c_int(), c_void_p()
    total, free, unused = c_size_t(), c_size_t(), c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), 0)
    call("cuDeviceGetName", name, 256, device)
    call("cuDeviceTotalMem_v2", byref(total), device)
    parts = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = c_int()
        call("cuDeviceGetAttribute", byref(value), attribute, device)
        parts.append(value.value)
    driver, before = read_driver()
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemGetInfo_v2", byref(free), byref(unused))
    return CardFacts(
        name=name.value.decode("utf-8", "replace"),
        driver=driver,
        compute_capability=(parts[0], parts[1]),
        total_bytes=total.value,
        free_before_bytes=before,
        free_after_bytes=free.value,
    )


def read_driver() -> tuple[str, int | None]:
    """Return the driver's version and the card's free memory; empty and None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return str(pynvml.nvmlSystemGetDriverVersion()), int(memory.free)
    except Exception:  # the package or the library is absent, or refuses
        return "", None


def sweep_convolutions() -> CardRecord:
    """Return cuDNN's version and its candidates; stop at the first missing function."""
    try:
        cudnn, rows = Cudnn(load_library(), runs=True), []
        for row in sweep(cudnn, list(list_convolutions())):
            if "has no" in row.failed:
                raise CudnnError(row.failed)
            rows.append(row)
    except CudnnError as error:
        raise SystemExit(str(error)) from None
    return CardRecord(card=CardFacts(), cudnn=cudnn.version, convolutions=tuple(rows))


class Visit:
    """The measurements of one call, and the record that they go to."""

    def __init__(
        self, out: Path, gpu: str, environment: dict[str, str], seconds: float
    ) -> None:
        self.out = out
        self.gpu = gpu
        self.environment = environment
        self.end_s = time.monotonic() + seconds
        self.record = CardRecord(card=CardFacts(is_simulated=bool(gpu)))
        if out.exists():
            self.record = read_record(out)

    @property
    def left_s(self) -> float:
        """The time that is left."""
        return self.end_s - time.monotonic()

    def keep(self, **changes: Any) -> None:
        """Put results into the record and write it."""
        self.record = msgspec.structs.replace(self.record, **changes)
        write_record(self.out, self.record)

    def run(self, *command: str | Path) -> str:
        """Run a Python script in a process of its own and return its output; OSError if it fails."""
        try:
            done = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, check=False,
                timeout=max(self.left_s, 1.0), env=os.environ | self.environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise OSError("the time was over") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise OSError(lines[-1] if lines else "it gave no error")
        return done.stdout

    def read_card(self) -> None:
        """Record the card, its context, and TensorFlow's limit."""
        if self.record.card.limit_bytes is not None or self.left_s < _CONTEXT_S:
            return
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "part.json.gz"
            self.run(__file__, part, "--part", "context")
            card = read_record(part).card
        version, limit = json.loads(
            self.run("-c", _LIMIT_CODE).strip().splitlines()[-1]
        )
        card = msgspec.structs.replace(
            card, tensorflow=version, limit_bytes=limit, is_simulated=bool(self.gpu)
        )
        self.keep(card=card)

    def trace_steps(self, jobs: int) -> None:
        """Trace the steps that the record lacks, several at a time."""
        known = {row.name for row in self.record.peaks if not row.failed}
        steps = [step for step in list_steps() if step.name not in known]
        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed(
                [pool.submit(self.trace, step) for step in steps]
            ):
                row = future.result()
                if row is not None:
                    print(describe_row(row), flush=True)
                    others = [one for one in self.record.peaks if one.name != row.name]
                    self.keep(peaks=(*others, row))

    def trace(self, step: Step) -> PeakRow | None:
        """Trace a step in its processes; return the largest peaks, None if the time is over."""
        if self.left_s < step.seconds:
            return None
        with ThreadPoolExecutor(step.processes) as pool:
            futures = [
                pool.submit(self.trace_once, step) for _ in range(step.processes)
            ]
        rows = [future.result() for future in futures]
        known = [row for row in rows if row is not None]
        return max(
            known,
            key=lambda row: (bool(row.failed), row.allocated_bytes or 0),
            default=None,
        )

    def trace_once(self, step: Step) -> PeakRow | None:
        """Trace a step in one process; return its peaks, or None if the time is over."""
        began_s = time.monotonic()
        target = step.name.partition(",")[0]
        if target.startswith("card_models"):
            target = str(HERE / target)
        place = ["--gpu", self.gpu] if self.gpu else ["--device", "gpu"]
        batch = ["--batch-size", str(step.batch)] if step.batch else []
        way = "--jit" if step.is_compiled else "--no-jit"
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "report.json"
            files = ["--json", str(out), "--out", str(Path(folder) / "run")]
            command = Path(sys.executable).with_name("analyze")
            environment = os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
            try:
                done = subprocess.run(
                    [command, "trace", target, *batch, way, *place, *files],
                    capture_output=True, text=True, check=False, env=environment,
                    timeout=max(self.left_s, 1.0),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return None
            report = json.loads(out.read_bytes()) if out.exists() else None
        spent_s = round(time.monotonic() - began_s)
        if report is None:
            reason = (done.stderr.strip().splitlines() or ["no report"])[-1]
            return PeakRow(
                name=step.name, batch=step.batch, failed=reason, seconds=spent_s
            )
        return read_report(report, step, spent_s)

    def sweep(self) -> None:
        """Record cuDNN's choices in TensorFlow, then its own candidates."""
        if not self.record.choices and self.left_s > _CHOICES_S:
            with tempfile.TemporaryDirectory() as folder:
                self.run(HERE / "tensorflow_sweep.py", folder)
                traces = Path(folder).rglob("*.xplane.pb")
                choices = [one for trace in traces for one in read_choices(trace)]
            self.keep(choices=tuple(choices))
        if not self.record.convolutions and self.left_s > _SWEEP_S:
            with tempfile.TemporaryDirectory() as folder:
                part = Path(folder) / "part.json.gz"
                self.run(__file__, part, "--part", "cudnn")
                swept = read_record(part)
            self.keep(cudnn=swept.cudnn, convolutions=swept.convolutions)


def read_report(report: dict[str, Any], step: Step, spent_s: int) -> PeakRow:
    """Return the peaks in a report."""
    error, steps, peak = report.get("error") or {}, report["steps"], report["peak"]
    requested = peak["requested_bytes"]
    return PeakRow(
        name=step.name,
        batch=step.batch,
        requested_bytes=requested,
        allocated_bytes=peak["allocated_bytes"],
        first_requested_bytes=steps[0]["requested_bytes"] if steps else None,
        own_bytes=requested - (report.get("resident") or {}).get("requested_bytes", 0),
        failed=str(error.get("message", "")).partition("\n")[0],
        seconds=spent_s,
    )


def simulate(gpu: str, folder: Path) -> dict[str, str]:
    """Return the environment of a simulated card; empty for the machine's own."""
    if not gpu:
        return {}
    from analyzer.model.contract.child_messages import CaptureOptions
    from analyzer.simulated_card.card_environment import make_card_environment

    variables = make_card_environment(CaptureOptions(gpu=gpu), folder)
    return {**variables, SIMULATED: gpu}


def describe_row(row: PeakRow) -> str:
    """Return a row in a line."""
    sizes = (
        f"{row.requested_bytes} requested, {row.allocated_bytes} allocated, first step "
        f"{row.first_requested_bytes}"
    )
    return f"{row.name}, batch {row.batch}: {row.failed or sizes} ({row.seconds} s)"


def describe(found: CardRecord) -> Iterator[str]:
    """Yield the main figures of a record."""
    card = found.card
    kind = "simulated" if card.is_simulated else f"driver {card.driver or 'unknown'}"
    yield f"{card.name or 'no card'} ({kind}), total {card.total_bytes}, limit {card.limit_bytes}"
    if card.free_before_bytes is not None and card.free_after_bytes is not None:
        yield f"context: {card.free_before_bytes - card.free_after_bytes:,} bytes"
    yield from map(describe_row, found.peaks)
    yield f"{len(found.choices)} convolutions of TensorFlow"
    yield f"cuDNN {found.cudnn}: {len(found.convolutions)} convolutions"
    yield from (f"not measured: {note}" for note in found.notes)


def main() -> None:
    """Measure what the record lacks, or show the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 1) // 2, 1))
    parser.add_argument("--gpu", default="", help="name of a card to simulate")
    parser.add_argument("--show", action="store_true", help="print the record")
    parser.add_argument("--part", choices=("context", "cudnn"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.show:
        print("\n".join(describe(read_record(asked.record))))
        return
    if asked.part:
        is_context = asked.part == "context"
        part = CardRecord(card=read_context()) if is_context else sweep_convolutions()
        write_record(asked.record, part)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = simulate(asked.gpu, Path(folder))
        visit = Visit(asked.record, asked.gpu, environment, asked.seconds)
        notes = []
        for measure in (
            visit.read_card,
            lambda: visit.trace_steps(asked.jobs),
            visit.sweep,
        ):
            try:
                measure()
            except (OSError, ValueError) as error:
                notes.append(str(error))
        visit.keep(notes=tuple(notes))
    print("\n".join(describe(visit.record)))


if __name__ == "__main__":
    main()

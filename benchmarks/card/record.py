"""Record the memory facts of this machine's NVIDIA GPU in one file.

    python benchmarks/card/record.py --out card.json.gz
    python benchmarks/card/record.py --out card.json.gz --gpu t4        # on a simulated card
    python benchmarks/card/record.py --show card.json.gz

The record has the card's memory before and after a CUDA context, TensorFlow's limit, the candidates of a
sweep of convolutions with workspace and time (by cuDNN's own library), the workspaces that TensorFlow
chooses, and the peaks of the models of ``real_models.py`` and ``card_models.py``. A part that fails is a
note in the record; the others go on. Without TensorFlow, its limit, choices and peaks are missing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from card_record import (
    SIMULATED,
    CardFacts,
    CardRecord,
    ConvolutionChoice,
    ConvolutionRow,
    PeakRow,
    read_record,
    write_record,
)
from cudnn_sweep import Cudnn, CudnnError, list_convolutions, load_library, sweep
from tensorflow_sweep import read_choices

HERE: Final = Path(__file__).parent
REAL: Final = "real_models.py"
COMMON: Final = "card_models.py"
CASES: Final = (
    *((REAL, "alexnet", 128), (REAL, "resnet50v2", 128), (REAL, "xception_frozen", 32)),
    *((REAL, "bert_base_128", 32), (COMMON, "bert512_half", 8)),
    *((COMMON, "resnet50", 64), (COMMON, "resnet50_half", 64), (COMMON, "vgg16", 32)),
    *((COMMON, "mobilenet", 64), (COMMON, "densenet", 32), (COMMON, "inception", 32)),
    *(
        (COMMON, "efficientnet", 32),
        (COMMON, "efficientnet_half", 32),
        (COMMON, "convnext", 16),
    ),
    *((COMMON, "unet", 32), (COMMON, "three_axes", 16), (COMMON, "one_axis", 64)),
    *((COMMON, "lstm", 64), (COMMON, "dense", 256)),
)
"""File, function and batch size of each model to trace, op by op and compiled."""

LONGEST_S: Final = 1800
_LIMIT_CODE: Final = """
import json, tensorflow as tf
from tensorflow.python.client import device_lib
found = [one for one in device_lib.list_local_devices() if one.device_type == "GPU"]
print(json.dumps([tf.__version__, found[0].memory_limit if found else None]))
"""

_Part = TypeVar("_Part")


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


def record_workspaces(*, runs: bool) -> tuple[int, list[ConvolutionRow]]:
    """Return cuDNN's version and the sweep; stop at the first missing function."""
    cudnn, rows = Cudnn(load_library(), runs=runs), []
    for row in sweep(cudnn, list(list_convolutions())):
        if "has no" in row.failed:
            raise CudnnError(row.failed)
        rows.append(row)
    return cudnn.version, rows


def read_limit(environment: dict[str, str]) -> tuple[str, int | None]:
    """Return TensorFlow's version and its limit on the card."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMIT_CODE], capture_output=True, text=True, timeout=LONGEST_S,
        check=False, env=os.environ | environment,
    )  # fmt: skip
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["it gave no error"])[-1])
    version, limit = json.loads(done.stdout.strip().splitlines()[-1])
    return str(version), limit


def record_choices(environment: dict[str, str]) -> tuple[ConvolutionChoice, ...]:
    """Return the algorithms that TensorFlow chooses for convolutions."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, HERE / "tensorflow_sweep.py", folder], capture_output=True, text=True,
            timeout=LONGEST_S, check=False, env=os.environ | environment,
        )  # fmt: skip
        if done.returncode:
            raise OSError(
                (done.stderr.strip().splitlines() or ["it gave no error"])[-1]
            )
        traces = Path(folder).rglob("*.xplane.pb")
        return tuple(choice for trace in traces for choice in read_choices(trace))


def trace_cases(gpu: str) -> Iterator[PeakRow]:
    """Yield the peaks of the models, each op by op and compiled."""
    for file, case, batch in CASES:
        for option, suffix in (("--no-jit", ""), ("--jit", ", compiled")):
            name = f"{file}:{case}{suffix}"
            yield trace_case(f"{HERE / file}:{case}", batch, option, name, gpu)


def trace_case(target: str, batch: int, option: str, name: str, gpu: str) -> PeakRow:
    """Return the peaks of one model, or its error."""
    place = ["--gpu", gpu] if gpu else ["--device", "gpu"]
    command = Path(sys.executable).with_name("analyze")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        arguments = [
            target,
            "--batch-size",
            str(batch),
            option,
            *place,
            "--json",
            str(out),
        ]
        try:
            done = subprocess.run(
                [command, "trace", *arguments, "--out", str(Path(folder) / "run")],
                capture_output=True, text=True, timeout=LONGEST_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return PeakRow(name=name, batch=batch, failed=str(error))
        if not out.exists():
            reason = (done.stderr.strip().splitlines() or ["no report"])[-1]
            return PeakRow(name=name, batch=batch, failed=reason)
        report = json.loads(out.read_bytes())
    failed = report.get("error") or {}
    steps = report["steps"]
    return PeakRow(
        name=name,
        batch=batch,
        requested_bytes=report["peak"]["requested_bytes"],
        allocated_bytes=report["peak"]["allocated_bytes"],
        first_requested_bytes=steps[0]["requested_bytes"] if steps else None,
        failed=str(failed.get("message", "")).partition("\n")[0],
    )


def run_in_child(part: str, environment: dict[str, str], out: Path) -> Any:
    """Run one part of this script in a process of its own and return its result."""
    command = [sys.executable, __file__, "--part", part, "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST_S, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["it gave no error"])[-1])
    return read_record(out)


def record(gpu: str, *, with_peaks: bool) -> CardRecord:
    """Return everything that can be measured, with a note for each part that cannot."""
    notes: list[str] = []

    def try_part(name: str, make: Callable[[], _Part], default: _Part) -> _Part:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            return make()
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            notes.append(f"{name}: {error}")
            return default

    with tempfile.TemporaryDirectory() as folder:
        environment = simulate(gpu, Path(folder)) if gpu else {}
        out, empty = Path(folder) / "part.json.gz", CardRecord(card=CardFacts())
        context = try_part(
            "context", lambda: run_in_child("context", environment, out), empty
        )
        swept = try_part(
            "convolutions", lambda: run_in_child("cudnn", environment, out), empty
        )
        version, limit = try_part(
            "TensorFlow", lambda: read_limit(environment), ("", None)
        )
        choices = (
            try_part("choices", lambda: record_choices(environment), ())
            if version
            else ()
        )
    peaks = (
        try_part("peaks", lambda: tuple(trace_cases(gpu)), ())
        if with_peaks and version
        else ()
    )
    card = msgspec.structs.replace(
        context.card, tensorflow=version, limit_bytes=limit, is_simulated=bool(gpu)
    )
    return CardRecord(
        card=card,
        cudnn=swept.cudnn,
        convolutions=swept.convolutions,
        choices=choices,
        peaks=peaks,
        notes=tuple(notes),
    )


def simulate(gpu: str, folder: Path) -> dict[str, str]:
    """Return the environment of a simulated card."""
    from analyzer.phantom.phantom_environment import (
        PhantomOptions,
        make_phantom_environment,
        parse_cards,
    )

    variables = make_phantom_environment(PhantomOptions(gpus=parse_cards(gpu)), folder)
    return {**variables, SIMULATED: gpu}


def run_part(part: str) -> CardRecord:
    """Return the record of one part, in a child process."""
    if part == "context":
        return CardRecord(card=read_context())
    try:
        version, rows = record_workspaces(runs=True)
    except CudnnError as error:
        raise SystemExit(str(error)) from None
    return CardRecord(card=CardFacts(), cudnn=version, convolutions=tuple(rows))


def describe(found: CardRecord) -> Iterator[str]:
    """Yield the main figures of a record."""
    card = found.card
    kind = "simulated" if card.is_simulated else f"driver {card.driver or 'unknown'}"
    yield f"{card.name or 'no card'} ({kind}), total {card.total_bytes}, limit {card.limit_bytes}"
    if card.free_before_bytes is not None and card.free_after_bytes is not None:
        yield f"context: {card.free_before_bytes - card.free_after_bytes:,} bytes"
    answered = sum(bool(row.candidates) for row in found.convolutions)
    yield f"cuDNN {found.cudnn}: {answered} of {len(found.convolutions)} convolutions answered"
    reasons = Counter(row.failed for row in found.convolutions if row.failed)
    yield from (
        f"{count} convolutions: {reason}" for reason, count in reasons.most_common(3)
    )
    for row in found.peaks:
        sizes = f"{row.requested_bytes} requested, {row.allocated_bytes} allocated, first step "
        yield f"{row.name}, batch {row.batch}: {row.failed or sizes + str(row.first_requested_bytes)}"
    yield from (f"not measured: {note}" for note in found.notes)


def main() -> None:
    """Record the card, or show a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gpu", default="", help="name of a card to simulate")
    parser.add_argument("--no-peaks", action="store_true", help="skip the models")
    parser.add_argument("--show", type=Path, help="print a record")
    parser.add_argument("--part", choices=("context", "cudnn"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.show is not None:
        print("\n".join(describe(read_record(asked.show))))
        return
    if asked.out is None:
        parser.error("--out FILE is required")
    if asked.part:
        write_record(asked.out, run_part(asked.part))
        return
    found = record(asked.gpu, with_peaks=not asked.no_peaks)
    write_record(asked.out, found)
    print("\n".join(describe(found)))


if __name__ == "__main__":
    main()

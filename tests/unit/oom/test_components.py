"""Failures of components other than TensorFlow: each is named, and none is denied."""

# ruff: noqa: E501 - lines of logs

from __future__ import annotations

import io
from pathlib import Path

import pytest
from unit.oom.dump_wordings import log_of
from unit.oom.test_every_version import FULL

from analyzer.model.contract.report.oom_file import OomFailure
from analyzer.model.units import format_option_bytes
from analyzer.oom import OomDocument, read_oom_log
from analyzer.oom.scan import patterns

MIB, GIB = 1 << 20, 1 << 30
TORCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of"
NCCL = "node7:41:77 [3] include/alloc.h:99 NCCL WARN"
POD = "  Last State: Terminated\n    Reason: OOMKilled\n    Exit Code: 137\n"
FILE = 'File "/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 9, in forward\n'

CASES: dict[str, tuple[str, str, str, int | None, str]] = {
    "torch library": (
        f"{FILE}RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        *("cuBLAS (PyTorch)", "beside-the-pool", None, "outside PyTorch's pool"),
    ),
    "NCCL": (
        f"{NCCL} Cuda failure 2 'out of memory'\n{NCCL} Failed to CUDA calloc async 8388608 bytes",
        *("NCCL", "beside-the-pool", 8 * MIB, "8.00 MiB requested"),
    ),
    "another framework": (
        f"{TORCH} 23.50 GiB of which 1.25 GiB is free.",
        *("another framework", "cannot-tell", 3584 * MIB, "TensorFlow's failures only"),
    ),
    "shared memory": (
        "node3:210:310 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-AbC12x to 33030532 "
        "bytes, error: No space left on device (28)\n",
        *("shared memory", "host", None, "/dev/shm"),
    ),
    "status 247": (
        "Process 10 exit with status code 247\n",
        *("the system", "cannot-tell", None, "was killed"),
    ),
    "minus 9": (
        "Process exited with return code -9\n",
        *("the system", "cannot-tell", None, "was killed"),
    ),
    "pod": (
        f"{POD}    Limits:\n      cpu: 2\n      memory: 512Mi\n    Requests:\n      memory: 128Mi\n",
        *("container", "host", None, "the limit is 512.0 MiB"),
    ),
    "container": (
        '  "OOMKilled": true,\n  "ExitCode": 137,\n  "Memory": 1073741824,\n',
        *("container", "host", None, "the limit is 1.00 GiB"),
    ),
    "Slurm": (
        "#SBATCH --mem=24G\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
        *("container", "host", None, "the limit is 24.00 GiB"),
    ),
    "kernel": (
        "[1.5] memory: usage 2097152kB, limit 2097152kB, failcnt 9\n[1.6] Memory cgroup out of memory: "
        "Killed process 7 (python) total-vm:9000000kB, anon-rss:2000000kB",
        *("container", "host", None, "the process held 1.91 GiB"),
    ),
    "context": (
        "E direct_session.cc:1] failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY; total "
        "memory reported: 18446744073709551615",
        *("CUDA driver", "held-by-others", None, "before TensorFlow's pool existed"),
    ),
    "JAX": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        "5368709120 bytes.",
        *("JAX (XLA)", "cannot-tell", 5 * GIB, "JAX: 5.00 GiB requested"),
    ),
    "JAX request": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 3.25GiB "
        "(3489660928B) on device ordinal 0",
        *("JAX (XLA)", "cannot-tell", 3328 * MIB, "JAX: 3.25 GiB requested"),
    ),
    "CUDA graph": (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to instantiate CUDA graph: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        *("CUDA", "cannot-tell", None, "A CUDA call found no card memory"),
    ),
    "JAX cuBLAS": (
        "2026-01-05 10:11:12.131000: E external/xla/xla/stream_executor/cuda/cuda_blas.cc:191] failed to create "
        "cublas handle: the library was not initialized",
        *("cuBLAS", "beside-the-pool", None, "outside JAX's pool"),
    ),
    "cuDNN's free memory": (
        "E0000 00:00:1700000000.223456    4242 cuda_dnn.cc:535] Could not create cudnn handle: "
        "CUDNN_STATUS_NOT_INITIALIZED\nE0000 00:00:1700000000.323456    4242 cuda_dnn.cc:539] Possibly "
        "insufficient driver version: 535.54.3, freeMemory: 187.62MiB",
        *("cuDNN", "beside-the-pool", None, "187.6 MiB free"),
    ),
    "killed pod": (
        "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137\n    Limits:\n"
        "      memory:  2Gi\n",
        *("the system", "host", None, "the limit is 2.00 GiB"),
    ),
    "unknown": (
        "FatalError: frobnicator: device memory exhausted, out of memory",
        *("an unknown program", "cannot-tell", None, "does not know its wording"),
    ),
}


def document(text: str) -> OomDocument:
    return read_oom_log(io.BytesIO(text.encode()), "a log").document


def only(text: str) -> OomFailure:
    (failure,) = document(text).failures
    return failure


@pytest.mark.parametrize(
    ("text", "component", "cause", "request_bytes", "words"), CASES.values(), ids=CASES
)
def test_the_component_its_cause_and_its_figures_are_named(
    text: str, component: str, cause: str, request_bytes: int | None, words: str
) -> None:
    failure = only(text)
    assert (failure.component, failure.verdict.id) == (component, cause)
    assert words in failure.verdict.title
    asked = None if failure.asked is None else failure.asked.requested_bytes
    assert asked == pytest.approx(request_bytes, rel=1e-9) if request_bytes else asked is None
    assert failure.remedies


@pytest.mark.parametrize(
    "text",
    [
        '"OOMKilled": false,\n"ExitCode": 0,\n',
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid value'\n",
        "    except torch.cuda.OutOfMemoryError:\n        pass\n",
        "ray.exceptions.OutOfDiskError: Local disk is full\nThe object cannot be created because the local "
        "object store is full and the local disk's utilization is over capacity (95% by default).\n",
        "MIOpen(HIP): Warning [IsEnoughWorkspace] [EvaluateInvokers] Solver <GemmFwdRest>, workspace required: "
        "25657344, provided ptr: 0 size: 0\n",
        "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)\n",
        "# If you run out of memory, use a smaller batch: the out of memory error then goes away.\n",
        "    if 'out of memory' in str(error):\n        retry()\n",
        "returned 137 rows\nINFO Killed 0 workers\n",
        "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 3 Workers crashed\n",
        "[1.0] oom_kill 0\nepoch 137/468 loss: 0.137 memory 12 MB\n",
    ],
)
def test_lines_that_only_mention_memory_are_no_failure(text: str) -> None:
    assert not document(text).failures


def test_xlas_budget_is_the_verdict_if_the_log_has_no_other_figure() -> None:
    failure = only(
        "W hlo_rematerialization.cc:1] Can't reduce memory use below 8.00GiB (8589934592 bytes) by "
        "rematerialization; only reduced to 12.00GiB (12884901888 bytes), down from 13.00GiB\n"
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9663676416 bytes.\n"
    )
    assert failure.verdict.id == "larger-than-limit"
    assert "12.00 GiB" in failure.verdict.title
    assert "8.00 GiB" in failure.verdict.title


def test_a_kill_after_a_failure_is_its_consequence() -> None:
    text = log_of(FULL, "2.9") + "train.sh: line 3:  4242 Killed   python train.py\n"
    assert only(text).component == "TensorFlow"


def test_the_next_command_names_the_card_and_the_batch() -> None:
    start = (
        "2026-01-01 00:00:00.1: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1] Created device "
        "/job:localhost/replica:0/task:0/device:GPU:0 with 900 MB memory:  -> device: 0, name: Tesla T4, pci\n"
    )
    found = document(start + log_of(FULL, "2.9"))
    batch = FULL.shape[0]
    options = f"--limit {format_option_bytes(FULL.limit)} --batch-size {batch}"
    assert found.next_command == f"analyze fit TARGET --gpu t4 {options}"
    assert document(CASES["another framework"][0]).next_command is None


def test_no_component_shares_its_name_with_another_wording() -> None:
    assert not set(patterns.COMPONENTS) & set(patterns._ROWS)


@pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be", "utf-16-be"])
def test_every_unicode_encoding_is_read(encoding: str) -> None:
    text = "".join(f"epoch {n}\n" for n in range(20)) + CASES["another framework"][0]
    found = read_oom_log(io.BytesIO(text.encode(encoding)), "a log").document
    assert [failure.component for failure in found.failures] == ["another framework"]


def test_numbers_of_400_digits_do_no_harm() -> None:
    texts = [*(case[0] for case in CASES.values()), log_of(FULL, "2.9", with_text=True)]
    for number in ("9" * 19, "9" * 400):
        text = "\n".join(texts).replace("2", number)
        read_oom_log(io.BytesIO(text.encode()), "a log").to_json(Path("/dev/null"))


def test_the_error_after_an_allocators_line_names_its_framework() -> None:
    text = (
        "W external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory "
        "trying to allocate 3.49GiB (rounded to 3743729664)requested by op \n"
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
        "3743729664 bytes.\n"
    )
    assert document(text).headline.startswith("JAX: 3.49 GiB requested")

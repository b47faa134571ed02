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
TORCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of"
TPU = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used"
NCCL = "node7:41:77 [3] include/alloc.h:99 NCCL WARN"
RAY = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
POD = "  Last State: Terminated\n    Reason: OOMKilled\n    Exit Code: 137\n"
FILE = 'File "/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 9, in forward\n'

CASES: dict[str, tuple[str, str, str, int | None, str]] = {
    "numba context": (  # the call differs: numba/cuda/cudadrv/driver.py, "Call to %s results in %s"
        "[2] Call to cuDevicePrimaryCtxRetain results in CUDA_ERROR_OUT_OF_MEMORY",
        *("Numba", "cannot-tell", None, "Numba found no card memory"),
    ),
    "torch full": (
        f"{TORCH.format('3.50')} 23.50 GiB of which 1.25 GiB is free. Of the allocated memory 21.00 GiB "
        "is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.",
        *("PyTorch", "full", 3584 * MIB, "1.25 GiB of 23.50 GiB free"),
    ),
    "torch fragmented": (
        f"{TORCH.format('3.50')} 23.50 GiB of which 1.25 GiB is free. Of the allocated memory 12.00 GiB "
        "is allocated by PyTorch, and 9.50 GiB is reserved by PyTorch but unallocated.",
        *("PyTorch", "fragmented", 3584 * MIB, "3.50 GiB requested"),
    ),
    "torch others": (
        "RuntimeError: CUDA out of memory. Tried to allocate 768.00 MiB (GPU 1; 15.75 GiB total capacity; "
        "2.00 GiB already allocated; 512.00 MiB free; 2.25 GiB reserved in total by PyTorch)",
        *("PyTorch", "held-by-others", 768 * MIB, "512.0 MiB of 15.75 GiB free"),
    ),
    "torch larger": (
        f"{TORCH.format('90.00')} 79.25 GiB of which 70.00 GiB is free.",
        *("PyTorch", "larger-than-card", 90 * GIB, "more than the card's 79.25 GiB"),
    ),
    "torch on Apple": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 7.50 GB, other allocations: 512.00 MB, max "
        "allowed: 9.00 GB). Tried to allocate 1.25 GB on private pool.",
        *("PyTorch", "full", 1280 * MIB, "9.00 GiB allowed"),
    ),
    "torch host": (
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 6442450944 bytes.",
        *("PyTorch", "host", 6 * GIB, "6.00 GiB requested"),
    ),
    "torch library": (
        f"{FILE}RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        *("cuBLAS (PyTorch)", "beside-the-pool", None, "outside PyTorch's pool"),
    ),
    "TPU program": (
        f"{TPU} 18.50G of 15.75G hbm. Exceeded hbm capacity by 2.75G.\n\nTotal hbm usage >= 19.00G:\n"
        "    reserved        512.00M\n    program          18.50G\n    arguments         1.25G\n\n"
        '  Largest program allocations in hbm:\n\n  1. Size: 8.00G\n     Operator: op_name="jit(step)/dot"\n'
        "     Shape: f32[65536,256,2]{2,1,0:T(8,128)}\n     Extra memory due to padding: 7.75G (64.0x)\n",
        *("TPU", "larger-than-limit", 18944 * MIB, "18.50 GiB needed, 15.75 GiB available"),
    ),
    "TPU chip": (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.50M of 16.00M vmem.",
        *("TPU", "larger-than-limit", 20 * MIB + MIB // 2, "on-chip memory"),
    ),
    "TPU buffer": (
        "E0100: RuntimeBufferAllocationFailure: Error allocating device buffer: Attempting to allocate "
        "2.50G. That was not possible. There are 1.50G free.; (0x0x0_HBM0)",
        *("TPU", "full", 2560 * MIB, "1.50 GiB free"),
    ),
    "TPU early": (
        "Aborting compilation early because it's unlikely to have enough memory. Requires 40.00G, has "
        "14.50G available.",
        *("TPU", "larger-than-limit", 40 * GIB, "14.50 GiB available"),
    ),
    "NCCL": (
        f"{NCCL} Cuda failure 2 'out of memory'\n{NCCL} Failed to CUDA calloc async 8388608 bytes",
        *("NCCL", "beside-the-pool", 8 * MIB, "8.00 MiB requested"),
    ),
    "NCCL unclear": (
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        *("NCCL", "cannot-tell", None, "does not say"),
    ),
    "Ray": (
        f"{RAY}\nMemory on the node (IP: 10.0.0.1) where the task (name=f, pid=7, memory used=3.25GB) was "
        "running was 60.50GB / 62.00GB (0.97), which exceeds the memory usage threshold of 0.95.",
        *("Ray", "host", None, "60.50 GiB of 62.00 GiB in use, the process held 3.25 GiB"),
    ),
    "Windows": (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete",
        *("Windows", "host", None, "paging file"),
    ),
    "tcmalloc": (
        "tcmalloc: large alloc 2147483648 bytes == 0x7f00 @ 0x1\ntcmalloc: large alloc 4294967296 bytes == "
        "0x7f88 @ 0x1 0x2\nKilled\n",
        *("tcmalloc", "host", 4 * GIB, "4.00 GiB requested"),
    ),
    "pod": (
        f"{POD}    Limits:\n      cpu: 2\n      memory: 512Mi\n    Requests:\n      memory: 128Mi\n",
        *("Kubernetes", "host", None, "the limit is 512.0 MiB"),
    ),
    "container": (
        '  "OOMKilled": true,\n  "ExitCode": 137,\n  "Memory": 1073741824,\n',
        *("Docker", "host", None, "the limit is 1.00 GiB"),
    ),
    "Slurm": (
        "#SBATCH --mem=24G\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
        *("Slurm", "host", None, "the limit is 24.00 GiB"),
    ),
    "kernel": (
        "[1.5] memory: usage 2097152kB, limit 2097152kB, failcnt 9\n[1.6] Memory cgroup out of memory: "
        "Killed process 7 (python) total-vm:9000000kB, anon-rss:2000000kB",
        *("kernel", "host", None, "the process held 1.91 GiB"),
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
    "ONNX": (
        "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size "
        "1073741824",
        *("ONNX Runtime", "cannot-tell", GIB, "1.00 GiB requested"),
    ),
    "CuPy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: "
        "2,147,483,648 bytes).",
        *("CuPy", "cannot-tell", GIB, "2.00 GiB in use"),
    ),
    "torch private pools": (
        f"{TORCH.format('3.25')} 79.25 GiB of which 1.75 GiB is free. Process 48211 has 77.50 GiB memory in "
        "use. Of the allocated memory 74.00 GiB is allocated by PyTorch, with 96.00 MiB allocated in private "
        "pools (e.g., CUDA Graphs), and 640.00 MiB is reserved by PyTorch but unallocated.",
        *("PyTorch", "full", 3328 * MIB, "74.00 GiB in use"),
    ),
    "torch and two more": (
        f"{TORCH.format('2.50')} 23.50 GiB of which 1.25 GiB is free. Process 12 has 12.00 GiB memory in use. "
        "Process 34 has 7.50 GiB memory in use. Including non-PyTorch memory, this process has 2.75 GiB memory "
        "in use. Of the allocated memory 2.25 GiB is allocated by PyTorch",
        *("PyTorch", "held-by-others", 2560 * MIB, "1.25 GiB of 23.50 GiB free"),
    ),
    "torch in a column": (  # rich's logger: the file on the right, the message broken on the left
        "2026-01-05 10:11:12,131 infinity_emb ERROR: CUDA out of       batch_handler.py:574\n"
        "         memory. Tried to allocate 1.25 GiB. GPU 0 has a total\n"
        "         capacity of 14.75 GiB of which 768.00 MiB is free.\n"
        "         Of the allocated memory 13.00 GiB is allocated by\n         PyTorch\n",
        *("PyTorch", "full", 1280 * MIB, "768.0 MiB of 14.75 GiB free, 13.00 GiB in use"),
    ),
    "torch overflow": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        *("PyTorch", "larger-than-card", None, "a size is negative"),
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
    "TPU with a code": (
        "jax.errors.JaxRuntimeError: E1000: CompileTimeHbmOom:\nXLA:TPU compile permanent error. Ran out of "
        "memory in memory space hbm. Used 47.50G of 31.25G hbm. Exceeded hbm capacity by 16.25G.",
        *("TPU", "larger-than-limit", 48640 * MIB, "31.25 GiB available"),
    ),
    "TPU bottom": (
        "RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 4.25G at the bottom of memory. That was not "
        "possible. There are 2.75G free, 0B reserved, and 2.50G reservable.",
        *("TPU", "full", 4352 * MIB, "2.75 GiB free"),
    ),
    "NCCL shared": (
        "node3:210:310 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-AbC12x to 33030532 "
        "bytes, error: No space left on device (28)\n",
        *("NCCL", "host", None, "/dev/shm"),
    ),
    "NCCL's last error": (
        "Last error:\nError while creating shared memory segment /dev/shm/nccl-AbC12x (size 33030528)\n",
        *("NCCL", "host", 33030528, "31.50 MiB requested"),
    ),
    "NCCL locked": (
        "node3:210:310 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
        *("NCCL", "host", None, "could not lock host memory"),
    ),
    "Ray old": (
        "ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node worker-9 is used (58.25 / "
        "60.5 GB). The top 10 memory consumers are:",
        *("Ray", "host", None, "58.25 GiB of 60.50 GiB in use"),
    ),
    "Ray store": (
        "ray.exceptions.ObjectStoreFullError: Failed to put object ffff01 in object store because it is full. "
        "Object size is 2684354560 bytes.",
        *("Ray", "host", 2560 * MIB, "object store is full"),
    ),
    "Windows in Chinese": (
        'OSError: [WinError 1455] 页面文件太小 Error loading "torch\\lib\\cublas64_11.dll"',
        *("Windows", "host", None, "paging file"),
    ),
    "Windows in Rust": (
        "Error: The paging file is too small for this operation to complete. (os error 1455)",
        *("Windows", "host", None, "paging file"),
    ),
    "tcmalloc in Colab": (
        "| Mar 3, 2026, 10:11:11 PM | INFO | KernelRestarter: restarting kernel (1/5), keep random ports |\n"
        "| Mar 3, 2026, 10:11:02 PM | WARNING | tcmalloc: large alloc 12884901888 bytes == 0x55d2a000 @ 0x7f3d |",
        *("tcmalloc", "host", 12 * GIB, "12.00 GiB requested"),
    ),
    "MIOpen": (
        "MIOpen Error: /MIOpen/src/hip/handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
        *("MIOpen", "beside-the-pool", 655360000, "MIOpen found no card memory"),
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
    "evicted pod": (
        "Message: The node was low on resource: memory. Threshold quantity: 100Mi, available: 61332Ki. Container "
        "trainer was using 14123456Ki, request is 0, has larger consumption of memory.",
        *("Kubernetes", "host", None, "13.47 GiB in use"),
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


def test_a_tpus_program_is_shown_by_part_with_its_largest_allocation() -> None:
    failure = only(CASES["TPU program"][0])
    assert failure.compiled is not None
    assert set(failure.compiled.sums_bytes) == {"reserved", "program", "arguments"}
    (buffer,) = failure.compiled.buffers
    assert (buffer.size_bytes, buffer.operator) == (
        pytest.approx(8 * GIB, rel=1e-3),
        "jit(step)/dot",
    )
    assert buffer.padding_bytes == pytest.approx(7.75 * GIB, rel=1e-3)
    assert any("padding" in remedy.action or "128" in remedy.action for remedy in failure.remedies)


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
    assert document(CASES["torch full"][0]).next_command is None


def test_no_component_shares_its_name_with_another_wording() -> None:
    assert not set(patterns.COMPONENTS) & set(patterns._ROWS)


@pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be", "utf-16-be"])
def test_every_unicode_encoding_is_read(encoding: str) -> None:
    text = "".join(f"epoch {n}\n" for n in range(20)) + CASES["torch full"][0]
    found = read_oom_log(io.BytesIO(text.encode(encoding)), "a log").document
    assert [failure.component for failure in found.failures] == ["PyTorch"]


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

"""Short excerpts of logs that people have posted, each judged by hand."""

from __future__ import annotations

import io

from analyzer.model.contract.report.oom_file import OomDocument
from analyzer.oom import read_oom_log

HOST = "tensorflow/core/common_runtime/device/device_host_allocator.h:46]"
DRIVER = "tensorflow/stream_executor/cuda/cuda_driver.cc"


def document(text: str) -> OomDocument:
    return read_oom_log(io.BytesIO(text.encode()), "a log").document


def test_unified_memory_that_the_driver_refuses_is_a_refusal() -> None:
    sizes = (17825792, 16043264, 14439168, 12995328)
    lines = [
        f"2021-10-15 15:01:4{n}.577626: E external/org_tensorflow/{DRIVER}:764] failed to alloc {size}"
        " bytes unified memory; result: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
        for n, size in enumerate(sizes)
    ]
    asked = (
        "RuntimeError: Resource exhausted: Out of memory while trying to allocate 12582912 bytes."
    )
    found = document("\n".join([*lines, asked]))
    assert [(run.times, run.first_bytes) for run in found.refusals] == [(4, sizes[0])]
    (failure,) = found.failures
    assert failure.verdict.id == "driver-refused"
    (before,) = document("\n".join([*lines[:2], asked])).failures  # cut: it may have got a region
    assert before.verdict.id == "cannot-tell"


def test_a_source_file_is_no_allocators_name() -> None:
    (failure,) = document(
        "W hlo_rematerialization.cc:3282] Can't reduce memory use below 193.77GiB (208055883007 bytes)"
        " by\n  rematerialization; only reduced to 350.36GiB (376197049916 bytes), down from 350.79GiB"
        " originally\nE gpu_cudamallocasync_allocator.cc:359] cuMemAllocAsync failed to allocate"
        " 281923031072 bytes\njax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying"
        " to allocate 262.56GiB.\n"
    ).failures
    assert failure.allocator is None
    assert failure.asked is not None
    assert failure.asked.requested_bytes == 281923031072


def test_pinned_memory_that_the_machine_refused_is_the_verdict_without_a_dump() -> None:
    lines = [
        f"2022-07-03 15:46:53.{n}45176: E {DRIVER}:802] failed to alloc {size} bytes on host: "
        f"CUDA_ERROR_OUT_OF_MEMORY: out of memory\n2022-07-03 15:46:53.{n}45221: W {HOST} could not "
        f"allocate pinned host memory of size: {size}\n"
        for n, size in enumerate((782758144, 704482304))
    ]
    asked = (
        "OP_REQUIRES failed at cast_op.cc:121 : RESOURCE_EXHAUSTED: OOM when allocating tensor with "
        "shape[128,1024,1024] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by "
        "allocator gpu_host_bfc\n"
    )
    (failure,) = document("".join([*lines, asked])).failures
    assert failure.verdict.id == "driver-refused"
    assert "pinned memory" in failure.verdict.title
    assert any("could be pinned" in reason for reason in failure.verdict.reasons)
    assert any("host memory" in remedy.action for remedy in failure.remedies)


def test_a_region_larger_than_any_card_is_told_as_the_log_has_it() -> None:
    found = document(
        "2026-01-05 10:11:12.131000: E tensorflow/compiler/xla/stream_executor/rocm/rocm_driver.cc:606]"
        " failed to allocate 127.99TiB (140729850295296 bytes) from device: HIP_ERROR_OutOfMemory\n"
    )
    assert [run.first_bytes for run in found.refusals] == [140729850295296]

"""The same failure in every dress in which a log reaches people."""

from __future__ import annotations

import gzip
import io
import json
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.oom.dump_wordings import VERSIONS, Scene, log_of, print_size
from unit.oom.test_every_version import FULL, PIECES

from analyzer.model.errors import InputError
from analyzer.oom import OomReport, read_oom_log
from analyzer.oom.log_records import parse_size
from analyzer.oom.scan.log_reader import read_records

LOG = log_of(PIECES, "2.9")


def report(content: bytes) -> OomReport:
    return read_oom_log(io.BytesIO(content), "a log")


def check(content: bytes, scene: Scene = PIECES) -> None:
    (failure,) = report(content).document.failures
    assert failure.asked is not None
    assert failure.asked.requested_bytes == scene.asked
    assert failure.op == scene.op
    assert failure.in_use_bytes == scene.in_use
    assert failure.limit_bytes == scene.limit
    assert failure.largest_hole_bytes == scene.largest_hole
    assert failure.source == "/home/me/train.py:42"


def with_prefix(prefix: str) -> bytes:
    return "".join(f"{prefix}{line}\n" for line in LOG.splitlines()).encode()


def notebook() -> bytes:
    lines = [line + "\n" for line in LOG.splitlines()]
    cell = {
        "cell_type": "code",
        "outputs": [{"output_type": "stream", "text": lines}],
        "source": [],
    }
    return json.dumps({"cells": [cell], "nbformat": 4}, indent=1).encode()


def one_line_notebook() -> bytes:
    cell = {"outputs": [{"name": "stderr", "text": LOG}], "source": ["train()"]}
    return json.dumps({"nbformat": 4, "cells": [cell]}).encode()


def container_json() -> bytes:
    rows = [
        {"log": line + "\n", "stream": "stderr", "time": "2026-11-22T05:08:25.1Z"}
        for line in LOG.splitlines()
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def rows_of(key: str) -> list[dict[str, object]]:
    return [{"timestamp": 1795, key: line, "id": n} for n, line in enumerate(LOG.splitlines())]


def doubled(line: str) -> str:
    return line.replace('"', '""')


def with_bars() -> bytes:
    bar = (
        "  1/500 [..............] - ETA: 2:03 - loss: 0.6931\r  2/500 [>.............] - ETA: 1:59"
    )
    return "".join(f"{bar}{line}\n" for line in LOG.splitlines()).encode()


def with_colours() -> bytes:
    return "".join(f"\x1b[33m{line}\x1b[0m\x1b[K\n" for line in LOG.splitlines()).encode()


DRESSES = {
    "plain": LOG.encode(),
    "gzip": gzip.compress(LOG.encode()),
    "gzip of two": gzip.compress(LOG[:2000].encode()) + gzip.compress(LOG[2000:].encode()),
    "windows": LOG.replace("\n", "\r\n").encode(),
    "utf-16": LOG.encode("utf-16"),
    "utf-16 without mark": LOG.encode("utf-16-le"),
    "utf-8 mark": b"\xef\xbb\xbf" + LOG.encode(),
    "notebook": notebook(),
    "one-line notebook": one_line_notebook(),
    "container": container_json(),
    "rows of an array": json.dumps(rows_of("textPayload"), indent=1).encode(),
    "rows of one line": json.dumps({"events": rows_of("message")}).encode(),
    "rows behind a time": "".join(
        f"2026-11-22 05:08:25 +0000 train: {json.dumps(row)}\n" for row in rows_of("log")
    ).encode(),
    "rows in rows": "".join(
        json.dumps({"message": json.dumps(row)}) + "\n" for row in rows_of("log")
    ).encode(),
    "logfmt": "".join(
        f"ts=2026-11-22 level=info msg={json.dumps(line)}\n" for line in LOG.splitlines()
    ).encode(),
    "spreadsheet": "".join(f'2026-11-22,"{doubled(s)}"\n' for s in LOG.splitlines()).encode(),
    "mpi": with_prefix("[1,3]<stderr>:"),
    "torchrun": with_prefix("[rank3]: "),
    "srun": with_prefix("12: "),
    "compose": with_prefix("worker_1  | "),
    "kubernetes": with_prefix("2026-11-22T05:08:25.123456789Z stderr F "),
    "ray": with_prefix("(train pid=1234, ip=10.0.0.7) "),
    "quoted": with_prefix("> "),
    "commented": with_prefix("# "),
    "indented": with_prefix("    "),
    "bars": with_bars(),
    "colours": with_colours(),
    "numbered": "".join(f"{n}: {line}\n" for n, line in enumerate(LOG.splitlines(), 1)).encode(),
    "numbered from 500": "".join(
        f"{n}: {s}\n" for n, s in enumerate(LOG.splitlines(), 500)
    ).encode(),
    "twice": (LOG + "the same again:\n" + LOG).encode(),
    "excerpt first": (LOG.splitlines()[0] + "\n...\n" + LOG).encode(),
    "glued": LOG.replace("\n2026", "2026").encode(),
}


@pytest.mark.parametrize("content", DRESSES.values(), ids=DRESSES)
def test_every_dress_gives_the_same_figures(content: bytes) -> None:
    check(content)


@pytest.mark.parametrize("labels", [("[1,0]<stderr>", "[1,1]<stderr>"), ("0", "1")])
def test_two_ranks_that_write_at_once_are_kept_apart(labels: tuple[str, str]) -> None:
    first = [f"{labels[0]}: {line}" for line in log_of(PIECES, "2.9").splitlines()]
    second = [f"{labels[1]}: {line}" for line in log_of(FULL, "2.9").splitlines()]
    draw = random.Random(7)
    mixed: list[str] = []
    while first or second:
        mixed.append((first if not second or (first and draw.random() < 0.5) else second).pop(0))
    found = {
        failure.process: failure for failure in report("\n".join(mixed).encode()).document.failures
    }
    assert len(found) == 2
    names = [label if label.startswith("[") else f"rank {label}" for label in labels]
    assert found[names[0]].largest_hole_bytes == PIECES.largest_hole
    assert found[names[1]].in_use_bytes == FULL.in_use


def test_two_devices_mixed_line_by_line_are_not_believed() -> None:
    other = Scene(
        FULL.regions, FULL.shape, FULL.limit, op="block/conv2/Conv2D", allocator="GPU_1_bfc"
    )
    first, second = (
        log_of(scene, "2.9", with_text=False).splitlines() for scene in (PIECES, other)
    )
    mixed = [line for pair in zip(first, second, strict=False) for line in pair]
    for failure in report("\n".join(mixed).encode()).document.failures:
        assert failure.largest_hole_bytes in (None, PIECES.largest_hole, FULL.largest_hole, 0) or (
            failure.ranges
        )
        assert failure.asked is not None
    assert len(report("\n".join(mixed).encode()).document.failures) == 2


def test_two_devices_that_name_their_threads_are_kept_apart() -> None:
    other = Scene(
        FULL.regions, FULL.shape, FULL.limit, op="block/conv2/Conv2D", allocator="GPU_1_bfc"
    )
    first = log_of(PIECES, "2.21", with_text=False).splitlines()
    second = [
        line.replace(" 77 ", " 78 ") for line in log_of(other, "2.21", with_text=False).splitlines()
    ]
    head, rest = 3, slice(4, None)
    mixed = first[:head] + second[:head]
    for pair in zip(first[rest], second[rest], strict=False):
        mixed += [line for line in pair if line.startswith(("I0000", "W0000"))]
    failures = {
        each.allocator: each for each in report("\n".join(mixed).encode()).document.failures
    }
    assert set(failures) == {"GPU_0_bfc", "GPU_1_bfc"}
    assert all(each.asked is not None for each in failures.values())


def test_a_log_without_a_failure_is_one_line() -> None:
    document = report(b"epoch 1\nloss: 0.1\n" * 100).document
    assert not document.failures
    assert document.headline == "No out-of-memory failure in this log."


def test_other_things_that_are_exhausted_are_no_memory() -> None:
    document = report(
        b"ResourceExhaustedError: RESOURCE_EXHAUSTED: /out; No space left on device\n"
    ).document
    assert not document.failures
    assert any("other than memory" in note for note in document.notes)


def test_the_system_ending_the_process_is_the_hosts_memory() -> None:
    line = (
        "[1234.5] Memory cgroup out of memory: Killed process 4242 (python) total-vm:9000000kB, "
        "anon-rss:8000000kB, file-rss:0kB\n"
    )
    (failure,) = report(line.encode()).document.failures
    assert failure.verdict.id == "host"
    assert "container" in failure.verdict.title
    assert "7.63 GiB" in failure.verdict.title
    (bare,) = report(
        b"train.sh: line 3:  4242 Killed                  python train.py\n"
    ).document.failures
    assert bare.verdict.id == "cannot-tell"


def test_numpys_array_is_counted_exactly() -> None:
    text = (
        b"numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape "
        b"(1000, 1000000) and data type float64\n"
    )
    (failure,) = report(text).document.failures
    assert failure.asked is not None
    assert failure.asked.requested_bytes == 8_000_000_000
    assert failure.verdict.id == "host"


def test_a_library_without_room_is_beside_the_pool() -> None:
    line = "E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: {}\n"
    text = line.format("CUDNN_STATUS_ALLOC_FAILED") * 3
    (failure,) = report(text.encode()).document.failures
    assert failure.verdict.id == "beside-the-pool"
    assert failure.told == 3


def test_refusals_alone_are_told_with_the_card() -> None:
    refused = (
        "2021-08-30 02:23:29.8: I tensorflow/stream_executor/cuda/cuda_driver.cc:775] failed to "
        "allocate {} ({} bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
    )
    start = (
        "2021-08-30 02:19:34.2: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1402] Created "
        "TensorFlow device (/job:localhost/replica:0/task:0/device:GPU:0 with 688 MB memory) -> "
        "physical GPU (device: 0, name: Tesla T4, pci bus id: 0001:00:00.0, compute capability: 7.5)\n"
    )
    text = start + refused.format("128.00M", 134217728) + refused.format("115.20M", 120796160)
    document = report(text.encode()).document
    assert not document.failures
    assert [(run.first_bytes, run.last_bytes, run.times) for run in document.refusals] == [
        (134217728, 120796160, 2)
    ]
    assert "128.0 MiB down to 115.2 MiB" in document.headline
    assert "688.5 MiB of the card's 14.76 GiB" in document.headline.replace("about ", "")


def test_xlas_buffers_are_listed() -> None:
    text = (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 6291456 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
        "             parameter allocation:    6.00MiB\n        maybe_live_out allocation:    6.00MiB\n"
        "                 total allocation:   12.00MiB\n"
        "              total fragmentation:         0B (0.00%)\n"
        "Peak buffers:\n\tBuffer 1:\n\t\tSize: 6.00MiB\n"
        '\t\tOperator: op_name="jit(f)/concatenate" source_file="m.py" source_line=689\n'
        "\t\tXLA Label: concatenate\n\t\tShape: f32[4096,128,3]\n\t\t==========================\n\n"
        "\tBuffer 2:\n\t\tSize: 384.0KiB\n\t\tEntry Parameter Subshape: f32[256,128,3]\n"
    )
    (failure,) = report((text * 2).encode()).document.failures
    assert failure.told == 2
    assert failure.compiled is not None
    assert [(each.size_bytes, each.shape) for each in failure.compiled.buffers][:1] == [
        (pytest.approx(6 << 20, rel=1e-3), "f32[4096,128,3]")
    ]
    assert failure.compiled.buffers[0].operator == "jit(f)/concatenate"
    assert len(failure.compiled.buffers) == 2


def test_a_copy_without_room_says_so() -> None:
    text = (
        b"tensorflow.python.framework.errors_impl.InternalError: Failed copying input tensor from "
        b"/job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 "
        b"in order to run _EagerConst: Dst tensor is not initialized.\n"
    )
    (failure,) = report(text).document.failures
    assert "copied to the device" in failure.verdict.title
    assert failure.device == "/job:localhost/replica:0/task:0/device:GPU:0"


def test_an_eager_op_is_named_without_the_length_of_its_inputs() -> None:
    place = "/job:localhost/replica:0/task:0/device:GPU:0"
    for wrapped, kind in {"ConcatV2_N_2": "ConcatV2", "_MklMatMul": "MklMatMul"}.items():
        text = (
            f"Error: {{{{function_node __wrapped__{wrapped}_device_{place}}}}} OOM when "
            f"allocating tensor with shape[8,8] and type float on {place} by allocator GPU_0_bfc\n"
        )
        (failure,) = report(text.encode()).document.failures
        assert failure.op_type == kind


def test_random_bytes_are_no_log() -> None:
    for seed in range(8):
        content = random.Random(seed).randbytes(300_000)
        report(content)
        report(LOG.encode()[:3000] + content + LOG.encode())


def test_damaged_copies_do_no_harm() -> None:
    draw = random.Random(11)
    for version in VERSIONS:
        content = bytearray(log_of(PIECES, version).encode())
        for _ in range(6):
            damaged = bytearray(content)
            for _ in range(30):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            found = report(bytes(damaged))
            json.dumps(found.plain)


def test_gzip_that_is_cut_gives_what_it_has() -> None:
    packed = gzip.compress(LOG.encode() + os.urandom(20_000))
    check(packed[:-4000])
    with pytest.raises(InputError, match="damaged"):
        report(b"\x1f\x8b\x08\x00" + bytes(50))


def test_a_long_line_is_taken_in_pieces() -> None:
    content = b"x" * 5_000_000 + b"\n" + LOG.encode() + b"InUse at 7f of size 512 " * 200_000
    report(content)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_what_is_printed_holds_what_was_printed(size: int) -> None:
    found = parse_size(print_size(size))
    assert found is not None
    assert size in found
    assert print_size(found.low) == print_size(size) == print_size(found.high)


def test_sizes_are_printed_as_tensorflow_prints_them() -> None:
    assert [print_size(size) for size in (0, 1023, 1024, 77_760_000, 1 << 30, 36_000_000_000)] == [
        *("0B", "1023B", "1.0KiB", "74.16MiB", "1.00GiB", "33.53GiB")
    ]


def listed(thread: int, text: str) -> str:
    return f"E1103 18:23:55.102130 {thread} gpu_cudamallocasync_allocator.cc:73] {text}\n"


def test_lists_that_two_threads_write_at_once_are_not_added_up() -> None:
    head = "Histogram of current allocation: (allocation_size_in_bytes, nb_allocation_of_...), ...;"
    log = listed(7, head) + listed(8, head)
    for row in ("2048, 57", "2097152, 784"):
        log += listed(7, row) + listed(8, row)
    records = read_records(io.BytesIO(log.encode()))
    assert [each.dump.summary for each in records.failures if each.dump.summary] == [
        [(2048, 57), (2097152, 784)]
    ]
    assert report(log.encode()).document.failures[0].asked is None


def test_a_progress_bar_and_numbers_of_steps_are_passed_over_to_the_failure() -> None:
    bar = "\r".join(f"{step}/468 [=====>...] - ETA: {step}s - loss: 1e-9" for step in range(468))
    check((f"{bar}\n" * 200 + LOG + f"{bar}\n" * 200).encode())

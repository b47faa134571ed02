"""The end of a child without a word of its own is told as what it is, and is never a bug of ours."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from analyzer.capture.process.child_ending import (
    HostMemory,
    explain_end,
    find_reason,
    read_host_memory,
)
from analyzer.model.contract.child_messages import ChildEnd
from analyzer.model.errors import AnalyzerError, ExitCode, FailureKind

GIB = 1 << 30
NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
E0000 00:00:1763769600.100000    1234 cuda_dnn.cc:8579] Unable to register cuDNN factory
2026-11-22 01:00:00.500000: E external/local_xla/xla/stream_executor/cuda/cuda_platform.cc:51] \
failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
"""
FATAL = "F0000 00:00:1763769600.300000    1234 tensor.cc:844] Check failed: dtype() == expected"
CRASH = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3/site-packages/lib.py", line 9 in poke
  File "/home/me/train.py", line 12 in step
  File "/home/me/train.py", line 40 in <module>
"""


def explain(
    code: int | None,
    log: str = NOISE,
    *,
    kills: int = 0,
    held_bytes: int = GIB,
    stage: str = "running step 1 of 3",
) -> AnalyzerError:
    end, memory = ChildEnd(code, held_bytes), HostMemory(kills, 8 * GIB)
    return explain_end(end, stage, "train.py:step", log, Path("/tmp/kept.log"), memory)


@pytest.mark.parametrize(
    ("code", "log", "says"),
    [
        (3, NOISE, "train.py:step ended its own process with exit code 3 while running step 1 of 3"),
        (3, NOISE + "no data here\n", "its last output: no data here"),
        (0, "", "exit code 0"),
        (-signal.SIGSEGV, NOISE, "died of SIGSEGV (Segmentation fault) while running step 1 of 3"),
        (-signal.SIGSEGV, NOISE + CRASH, "at /home/me/train.py:12 while running"),
        (-signal.SIGABRT, f"{NOISE}hello\n{FATAL}\nmore\n", "(Aborted) while running step 1 of 3: "
         "Check failed: dtype() == expected"),
        (-signal.SIGTERM, NOISE, "died of SIGTERM (Terminated)"),
        (-signal.SIGRTMAX, NOISE, "died of SIGRTMAX"),
        (None, NOISE, "Another process ended"),
    ],
)  # fmt: skip
def test_a_death_is_the_targets(code: int | None, log: str, says: str) -> None:
    error = explain(code, log)
    assert says in error.message
    assert error.exit_code is ExitCode.BAD_INPUT
    assert "cuInit" not in str(error)
    assert error.hint == "Its full output: /tmp/kept.log"


@pytest.mark.parametrize(
    ("kills", "held_bytes", "says", "code"),
    [
        (1, GIB, "it ran out of host memory", ExitCode.STEP_OUT_OF_MEMORY),
        (0, 7 * GIB, "probably because host memory ran out: it held 7.00 GiB of 8.00 GiB",
         ExitCode.STEP_OUT_OF_MEMORY),
        (0, GIB, "no lack of memory", ExitCode.BAD_INPUT),
    ],
)  # fmt: skip
def test_a_killed_process(kills: int, held_bytes: int, says: str, code: ExitCode) -> None:
    error = explain(-signal.SIGKILL, kills=kills, held_bytes=held_bytes)
    assert says in error.message
    assert error.exit_code is code


def test_memory_that_ran_out_before_the_system_stepped_in() -> None:
    log = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert explain(-signal.SIGABRT, NOISE + log).exit_code is ExitCode.STEP_OUT_OF_MEMORY


def test_an_allocator_that_ran_out_is_what_killed_the_process() -> None:
    failed = (
        "2026-11-22 01:00:01.500000: W tsl/framework/bfc_allocator.cc:501] Allocator (cpu) ran out of "
        "memory trying to allocate 32.00MiB (rounded to 33554432)requested by op conv\n"
        "If the cause is memory fragmentation maybe the environment variable helps. \n"
        "Current allocation summary follows.\nCurrent allocation summary follows.\n"
        "2026-11-22 01:00:01.500001: I tsl/framework/bfc_allocator.cc:1058] Stats: \n"
        "Limit:                        50331648\nMaxInUse:   49.35MiB\nLargestFreeBlock:  0B\n\n"
        "2026-11-22 01:00:01.500002: W tensorflow/core/framework/op_kernel.cc:1858] OP_REQUIRES failed "
        "at mkl_util.h:848 : RESOURCE_EXHAUSTED: OOM when allocating tensor\n"
        "Hint: If you want to see a list of allocated tensors when OOM happens, add "
        "report_tensor_allocations_upon_oom to RunOptions for current allocation info. \n\n"
    )
    error = explain(-signal.SIGSEGV, NOISE + failed + CRASH)
    assert error.exit_code is ExitCode.STEP_OUT_OF_MEMORY
    assert "32.00MiB" in error.message
    assert "SIGSEGV" in error.message
    assert error.hint == "analyze oom /tmp/kept.log explains it."
    assert find_reason(NOISE + failed + "last words\n" + CRASH) == "last words"


def test_a_buffer_that_a_kernel_needs_and_cannot_have_is_no_fault_of_the_targets() -> None:
    ran_out = "Allocator (cpu) ran out of memory trying to allocate 1.1KiB (rounded to 1280)"
    told = (
        f"W0000 00:00:1.2 20282 bfc_allocator.cc:502] {ran_out}\n"
        "I0000 00:00:1.2 20282 bfc_allocator.cc:1047] BFCAllocator dump\n"
        "W0000 00:00:1.2 20282 op_kernel.cc:1858] RESOURCE_EXHAUSTED: OOM when allocating tensor\n"
    )
    check = "F0000 00:00:1.3 20282 mkl_util.h:1420] 'tensor' Must be non NULL\n"
    assert find_reason(told + check) == ran_out
    # A long dump: the log's end, which is read, begins after the warning.
    assert "OOM when" in find_reason(told.partition("\n")[2] + check)


def test_the_line_that_tells() -> None:
    assert find_reason(NOISE) == ""
    assert find_reason("a\n\n  File x\nlast words\n" + NOISE) == "last words"
    assert len(find_reason("x" * 5000)) <= 300
    assert find_reason("") == ""


def system(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_what_the_system_says_of_memory(tmp_path: Path) -> None:
    new = system(
        tmp_path / "new",
        proc__meminfo="MemTotal:       8388608 kB\nMemFree: 1 kB\n",
        proc__vmstat="nr_free 1\noom_kill 2\n",
        sys__fs__cgroup__memory_dot_max=f"{2 * GIB}\n",
    )
    assert read_host_memory(new) == HostMemory(2, 2 * GIB)
    old = system(
        tmp_path / "old",
        sys__fs__cgroup__memory_dot_max="max\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes=f"{GIB}\n",
    )
    assert read_host_memory(old) == HostMemory(0, GIB)
    assert read_host_memory(tmp_path / "nothing") == HostMemory(0, None)
    assert read_host_memory().kills >= 0


@pytest.mark.parametrize(
    ("code", "log", "kind"),
    [
        (-signal.SIGABRT, "F0000 00:00:1.3 7 gpu_launch_config.h:129] Check failed: "
         "work_element_count >= 0 (-2147483648 vs. 0)\n", FailureKind.TOO_LARGE),
        (-signal.SIGSEGV, NOISE + CRASH, FailureKind.CRASHED),
        (-signal.SIGTERM, NOISE, FailureKind.KILLED),
        (-signal.SIGKILL, NOISE, FailureKind.KILLED),
        (None, NOISE, FailureKind.KILLED),
        (3, NOISE, FailureKind.EXITED),
        (-signal.SIGABRT, "std::bad_alloc\n", FailureKind.OUT_OF_MEMORY),
    ],
)  # fmt: skip
def test_the_kind_of_an_end(code: int | None, log: str, kind: FailureKind) -> None:
    assert explain(code, log).kind is kind

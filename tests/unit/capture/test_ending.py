"""The end of a child without a word of its own is told as what it is, and is never a bug of ours."""

import signal

import pytest

from analyzer.capture.process.child_process import explain_end
from analyzer.model.errors import AnalyzerError, ExitCode, FailureKind

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


def explain(code: int, log: str = NOISE, *, kills: int = 0) -> AnalyzerError:
    stage, hint = "running step 1 of 3", "Its full output: /tmp/kept.log"
    return explain_end(code, stage, "train.py:step", log, hint, kills=kills)


RAN_OUT = (
    "2026-11-22 01:00:01.500000: W tsl/framework/bfc_allocator.cc:501] Allocator (cpu) ran out of "
    "memory trying to allocate 32.00MiB (rounded to 33554432)requested by op conv\n"
    "2026-11-22 01:00:01.500002: W tensorflow/core/framework/op_kernel.cc:1858] OP_REQUIRES failed "
    "at mkl_util.h:848 : RESOURCE_EXHAUSTED: OOM when allocating tensor\n"
)
FREED_TWICE = (
    "F0000 00:00:1763769602.300000    1234 bfc_allocator.cc:1161] "
    "Check failed: h != kInvalidChunkHandle\n"
)


@pytest.mark.parametrize(
    ("code", "log", "kills", "says"),
    [
        (-signal.SIGKILL, NOISE, 1, "it ran out of host memory"),
        (-signal.SIGABRT, "what():  std::bad_alloc\n", 0, "ran out of memory"),
        (-signal.SIGSEGV, NOISE + RAN_OUT + CRASH, 0, "allocate 32.00MiB"),
        (
            -signal.SIGABRT,
            NOISE + RAN_OUT + FREED_TWICE + CRASH,
            0,
            "allocate 32.00MiB",
        ),
    ],
)
def test_a_lack_of_memory_is_named(code: int, log: str, kills: int, says: str) -> None:
    error = explain(code, log, kills=kills)
    assert error.exit_code is ExitCode.STEP_OUT_OF_MEMORY
    assert error.kind is FailureKind.OUT_OF_MEMORY
    assert says in error.message


@pytest.mark.parametrize(
    ("code", "log", "kind", "says"),
    [
        (3, NOISE, "EXITED",
         "train.py:step ended its own process with exit code 3 while running step 1 of 3"),
        (3, NOISE + "no data here\n", "EXITED", "its last output: no data here"),
        (-signal.SIGSEGV, NOISE + CRASH, "CRASHED",
         "died of SIGSEGV (Segmentation fault) at /home/me/train.py:12 while running step 1 of 3"),
        (-signal.SIGABRT, f"{NOISE}hello\n{FATAL}\nmore\n", "CRASHED", "(Aborted) while running "
         "step 1 of 3; its last output: Check failed: dtype() == expected"),
        (-signal.SIGABRT, "F0000 00:00:1.3 7 gpu_launch_config.h:129] Check failed: "
         "work_element_count >= 0 (-2147483648 vs. 0)\n", "TOO_LARGE", "Check failed: work_elem"),
        (-signal.SIGTERM, NOISE, "KILLED", "died of SIGTERM (Terminated)"),
        (-signal.SIGRTMAX, NOISE, "CRASHED", "died of SIGRTMAX"),
    ],
)  # fmt: skip
def test_a_death_is_the_targets(code: int, log: str, kind: str, says: str) -> None:
    error = explain(code, log)
    assert error.kind is FailureKind[kind]
    assert says in error.message
    assert error.exit_code is ExitCode.BAD_INPUT
    assert "cuInit" not in str(error)
    assert error.hint == "Its full output: /tmp/kept.log"

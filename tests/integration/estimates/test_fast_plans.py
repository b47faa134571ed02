"""XLA's plan without optimised code equals that of a run; the dump has the module before all passes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzer.capture.xla.xla_dumps import add_dump_flags

pytestmark = [pytest.mark.tf, pytest.mark.slow]

COMPILE = """
import json, sys, hashlib
from pathlib import Path
import tensorflow as tf
from analyzer.capture.xla.xla_dumps import read_dumped_module, read_dumped_plan
from analyzer.tracing.parse.hlo import HloProto

@tf.function(jit_compile=True)
def step(x, w):
    y = tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME"))
    return tf.reduce_sum(tf.nn.softmax(tf.linalg.matmul(y, y, transpose_b=True)), [1, 2])

def list_ops(module):
    proto = HloProto()
    proto.hlo_module.ParseFromString(module)
    return [(op.name, op.opcode) for one in proto.hlo_module.computations for op in one.instructions]

x, w = tf.zeros([4, 16, 16, 8]), tf.zeros([3, 3, 8, 8])
name = step.get_concrete_function(x, w).name.decode()
get_stage = step.experimental_get_compiler_ir(x, w)
get_stage("optimized_hlo_proto_serialized")
dump = Path(sys.argv[1])
module, (plan, _) = read_dumped_module(dump, name), read_dumped_plan(dump, name)
plan = [[one.index, one.size] for one in HloProto.FromString(plan).buffer_assignment.buffer_allocations]
print(json.dumps([list_ops(module) == list_ops(get_stage("hlo_serialized")), len(module), plan]))
"""


def test_a_fast_plan_is_the_plan_of_a_run(tmp_path: Path) -> None:
    fast, run = (
        _compile(tmp_path / str(is_run), is_run=is_run) for is_run in (False, True)
    )
    assert fast == run
    assert all(fast)


def _compile(dump: Path, *, is_run: bool) -> Any:
    flags = add_dump_flags(dump, is_run=is_run)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(dump)],
        env={**os.environ, "XLA_FLAGS": flags, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])

"""What other ways to tell a step's memory say of a case of the accuracy protocol, as one JSON line.

``grappler``: TensorFlow's own ``DeterminePeakMemoryUsage`` over the optimised graph. ``weights``: four
times the weights' bytes (weights, gradients and Adam's two slots). ``layers``: the popular formula that
adds up the outputs of all layers, and four times the weights.

Figures: "Beside other ways to tell" in benchmarks/results/accuracy-cpu.md.
"""

# ruff: noqa: TID253

from __future__ import annotations

import json
import math
import sys
from typing import Any

import accuracy_models
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import ops
from tensorflow.python.grappler import cluster, item, tf_optimizer
from tensorflow.python.training import saver

from analyzer.capture.run.step_capture import trace_function
from analyzer.capture.targets.resolve_target import make_program
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.capture_request import CaptureOptions

FLOAT_BYTES = 4


def main() -> None:
    name = sys.argv[1]
    batch = int(name.split("_")[1])
    made = accuracy_models.make(name)
    program = make_program(made, name, CaptureOptions(batch_size=batch, jit=False))
    weights = sum(
        math.prod(variable.shape) * FLOAT_BYTES
        for model in program.models
        for variable in model.weights
    )
    if not weights and isinstance(made, tuple):
        weights = sum(math.prod(v.shape) * FLOAT_BYTES for v in made[0].model.weights)
    print(
        json.dumps(
            {
                "grappler": grappler(program),
                "weights": 4 * weights or None,
                "layers": layers(program, batch, weights),
            }
        )
    )


def layers(program: Program, batch: int, weights: int) -> int | None:
    """Return the outputs' bytes of every layer for the batch, and four times the weights."""
    total = 0
    for model in program.models:
        for layer in model.layers:
            outputs = tf.nest.flatten(getattr(layer, "output", []))
            for tensor in outputs:
                total += (
                    batch
                    * math.prod(axis or 1 for axis in tensor.shape[1:])
                    * FLOAT_BYTES
                )
    return total + 4 * weights if total else None


def grappler(program: Program) -> int | None:
    """Return grappler's peak: outputs of the optimised graph by a virtual schedule."""
    graph_def = with_handles(trace_function(program).graph)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        outputs = [
            op
            for op in graph.get_operations()
            if not any(t.consumers() for t in op.outputs)
        ]
        for op in outputs:
            ops.add_to_collection("train_op", op)
        meta = saver.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    device = cluster.Cluster(disable_detailed_stats=True)
    optimised = tf_optimizer.OptimizeGraph(config, meta, cluster=device)
    meta.graph_def.CopyFrom(optimised)
    peaks = device.DeterminePeakMemoryUsage(item.Item(meta))
    return max((int(peak) for peak, _ in peaks.values()), default=None)


def with_handles(graph: Any) -> Any:
    """Return the graph with captured handles as ``VarHandleOp``, so that reads have shapes."""
    graph_def = graph.as_graph_def(add_shapes=True)
    captured = {inside.op.name: outside for outside, inside in graph.captures}
    for node in graph_def.node:
        outside = captured.get(node.name)
        data = getattr(outside, "_handle_data", None)
        if data is not None and data.is_set and data.shape_and_type:
            node.op = "VarHandleOp"
            node.attr.clear()
            node.attr["dtype"].type = data.shape_and_type[0].dtype
            node.attr["shape"].shape.CopyFrom(data.shape_and_type[0].shape)
            node.attr["shared_name"].s = node.name.encode()
    return graph_def


if __name__ == "__main__":
    main()

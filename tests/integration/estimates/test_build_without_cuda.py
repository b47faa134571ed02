"""A card's graph from a TensorFlow without CUDA, which lacks the ops that swap tensors to the host."""

import types

import pytest

tf = pytest.importorskip("tensorflow")

from analyzer.capture import private_names  # noqa: E402
from analyzer.capture.graph.estimate_capture import build_gpu_graph  # noqa: E402
from analyzer.cards.catalogue import find_gpu  # noqa: E402

SWAP = "_CopyFromGpuToHost"
LIMIT = 24 << 20  # below the need of the step, 64 kept activations of 1 MiB


def _list_op_types() -> set[str]:
    weights = [tf.Variable(tf.zeros((256, 256))) for _ in range(64)]

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_sum(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    function = step.get_concrete_function(tf.TensorSpec((1024, 256)))
    return {
        op.type for op in build_gpu_graph(function, find_gpu("t4"), LIMIT, (), {})[0]
    }


@pytest.mark.skipif(
    private_names.op_def_registry.get(SWAP) is None,
    reason="this TensorFlow has no swaps",
)
def test_tensors_are_swapped_only_by_a_build_with_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SWAP in _list_op_types()
    known = private_names.op_def_registry.get
    registry = types.SimpleNamespace(
        get=lambda name: None if name == SWAP else known(name)
    )
    monkeypatch.setattr(private_names, "op_def_registry", registry)
    found = _list_op_types()
    assert SWAP not in found
    assert "Tanh" in found

"""The cause of a large tensor is named, and the stated saving is that of the mended program."""

from typing import Any

import pytest
from simulated_cards import NEEDS_CARDS
from workbench import Workbench

pytestmark = NEEDS_CARDS

# Cause -> targets that have it first.
CAUSES = {
    "kept-by-tape": "taped distilled guessed",
    "outer-product": "pairs eager_pairs masked",
    "reduced-at-once": "kernel solved",
    "part-read": "variances normalized",
    "waits-for-sum": "unrolled eager_unrolled",
    "sliced-often": "sliced",
    "whole-table": "table",
    "dense-gradient": "penalized",
    "input-copies": "converted",
    "input-resized": "resized",
    "enlarged": "enlarged",
    "all-pairs": "tiled kernels",
    "small-copied": "diagonal joined patched repeated chosen",
    "product-order": "ordered",
    "vectorized-loop": "jacobian eager_jacobian",
    "attention-scores": "attended",
    "recomputable": "gated",
    "kept-again": "called looped",
    "wide-kernel": "flattened recurrent",
    "wide-layer": "widened",
    "accumulators": "accumulated",
    "image-tensors": "volumes",
    "one-hot": "targets words",
    "trained-base": "pretrained",
}


def estimate(workbench: Workbench, name: str, *options: str) -> dict[str, Any]:
    # A change of less than 1 % of the limit is not reported.
    card = ("--gpu", "t4", "--no-jit")
    if name.startswith("patched"):  # on a card the workspace decides
        card = ()
    options = (*card, "--limit", "256MiB", *options)
    return workbench.run("estimate", f"causes.py:{name}", *options).document


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"),
    [(name, cause) for cause, names in CAUSES.items() for name in names.split()],
)
def test_the_first_finding_is_the_cause(
    workbench: Workbench, name: str, cause: str
) -> None:
    document = estimate(workbench, name)
    mended = estimate(workbench, f"{name}_mended")

    finding = document["findings"][0]
    assert finding["id"] == cause
    assert "causes.py:" in finding["title"]
    if cause != "image-tensors":  # half as many pixels can be halved again
        assert cause not in [other["id"] for other in mended["findings"]]

    saved = document["peak"]["requested_bytes"] - mended["peak"]["requested_bytes"]
    stated = pytest.approx(saved, rel=0.06) if cause != "kept-again" else None
    assert finding["saves_bytes"] == stated
    assert saved > 0


@pytest.mark.slow
def test_a_model_that_has_learned_keeps_its_layers(workbench: Workbench) -> None:
    document = estimate(workbench, "recurrent", "--mode", "infer")
    assert "wide-kernel" not in str(document["findings"])


def test_a_change_is_proven_by_a_run(workbench: Workbench) -> None:
    proven = estimate(workbench, "pairs", "--prove")
    mended = estimate(workbench, "pairs_mended")

    (change,) = proven["remedies"]
    assert change["id"] == "outer-product"
    assert (
        "+            loss = tf.reduce_mean(tf.square(y[:, None] - x" in change["code"]
    )
    assert change["has_same_outputs"]
    assert change["requested_bytes"] == pytest.approx(
        mended["peak"]["requested_bytes"], rel=0.1
    )

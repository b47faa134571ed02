"""What is assumed of a card that is not there, as settings: the answers of libraries that are not there.

TensorFlow asks NVIDIA's libraries how much memory they need beside the tensors. What they would say
depends on the card and on their version; here it is a setting, with the most that TensorFlow accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One setting.

    Attributes:
        name: What ``--assume NAME=N`` calls it.
        what: What it is.
        usual: What is taken where nothing is said.
        most: The most that TensorFlow would accept, or that is plausible.
        is_bytes: Whether it counts bytes; else numbers.
        source: Where the figures come from.
    """

    name: str
    what: str
    usual: int
    most: int
    is_bytes: bool
    source: str


WORKSPACE: Final = Assumption(
    name="workspace",
    what="workspace of each plan of a convolution",
    usual=0,
    most=4 << 30,
    is_bytes=True,
    source="a plan with more than TF_CUDNN_WORKSPACE_LIMIT_IN_MB, 4 GiB, is not taken; where it "
    "cannot be had, one without is",
)
PRODUCT_WORKSPACE: Final = Assumption(
    name="product-workspace",
    what="workspace of each matrix product of cuBLASLt",
    usual=0,
    most=4 << 30,
    is_bytes=True,
    source="TF_CUBLAS_WORKSPACE_LIMIT_IN_MB (4 GiB); cuBLASLt's heuristic states it",
)
RECURRENT_RESERVE: Final = Assumption(
    name="recurrent-reserve",
    what="numbers kept for each unit, step and row of a recurrent layer (0: 6 for an LSTM, 5 for a GRU, "
    "2 for a plain one)",
    usual=0,
    most=12,
    is_bytes=False,
    source="gates, state and its tanh; cuDNN does not publish the layout, twice as much is the bound",
)
BATCH_NORM_RESERVE: Final = Assumption(
    name="batch-norm-reserve",
    what="reserve space of each batch normalization",
    usual=0,
    most=64 << 20,
    is_bytes=True,
    source="cudnnGetBatchNormalizationTrainingExReserveSpaceSize: none without an activation, with one "
    "a bit an element",
)
CONTEXT: Final = Assumption(
    name="context",
    what="what the driver's context keeps of a card",
    usual=320 << 20,
    most=450 << 20,
    is_bytes=True,
    source="TensorFlow's start-up line in public logs of T4, V100, A100, H100, L4, RTX 3090: 115 to "
    "450 MiB",
)
ASSUMPTIONS: Final = (
    WORKSPACE,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    BATCH_NORM_RESERVE,
    CONTEXT,
)

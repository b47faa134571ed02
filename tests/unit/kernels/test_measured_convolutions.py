"""cuDNN's algorithms by the table against the convolutions that the card kit recorded on a real card."""

import importlib
from pathlib import Path

import pytest

from analyzer.cards.catalogue import find_gpu
from analyzer.simulate.kernels.cudnn_algorithms import Convolution, find_offers

KIT = Path(__file__).parents[3] / "benchmarks" / "card"
LIMIT = 8 << 30
TOLERANCE_BYTES = 64 << 10


@pytest.fixture
def rows(monkeypatch):
    """Return pairs of a recorded convolution and its candidates."""
    monkeypatch.syspath_prepend(str(KIT))
    read = importlib.import_module("card_record").read_record
    gpu, pairs = find_gpu("h200-141gb-sxm"), []
    for row in read(KIT / "records" / "h200.json.gz").choices:
        channels_last = row.dtype != "float32"
        if channels_last and row.kernel == row.stride == 1:
            continue  # a product of matrices, without cuDNN
        call = Convolution(
            direction=row.direction, image=row.image, kernel=(row.filters, row.kernel, row.kernel),
            result=(row.result, row.result), stride=row.stride, dtype=row.dtype,
            channels_last=channels_last,
        )  # fmt: skip
        pairs.append((row, find_offers(call, gpu, LIMIT)))
    return pairs


def test_the_expected_range_contains_the_chosen_workspace(rows, monkeypatch):
    monkeypatch.syspath_prepend(str(KIT.parent))
    expect_range = importlib.import_module("workspaces").expect_range
    inside = 0
    for row, candidates in rows:
        likely = expect_range(candidates, small_bytes=0)
        slack = max(0.03 * row.bytes, TOLERANCE_BYTES)
        inside += likely.low - slack <= row.bytes <= likely.high + slack
    assert inside >= 0.85 * len(rows) > 200


def test_most_largest_trials_are_the_largest_candidate(rows):
    planar = [
        (row.largest_trial_bytes, max(one.bytes for one in candidates))
        for row, candidates in rows
        if row.dtype == "float32" and row.kernel > 1 and row.stride == 1
    ]
    close = sum(abs(largest - tried) <= 0.03 * tried for tried, largest in planar)
    assert close >= 0.7 * len(planar) > 30

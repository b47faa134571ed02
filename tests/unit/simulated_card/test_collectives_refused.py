"""An all-reduce on simulated cards is refused where TensorFlow contains NCCL."""

import pytest

from analyzer.capture.process.child_environment import check_collectives
from analyzer.model.errors import InputError


def test_an_all_reduce_is_refused_where_nccl_is_built_in() -> None:
    with pytest.raises(InputError, match=r"TensorFlow 2\.20\.0 contains NCCL"):
        check_collectives({"MatMul", "CollectiveReduceV2"}, "2.20.0")


@pytest.mark.parametrize("version", ["2.21.0", "2.22.0-rc1"])
def test_a_later_tensorflow_looks_nccl_up(version: str) -> None:
    check_collectives({"CollectiveReduceV2"}, version)
    check_collectives({"MatMul"}, "2.18.1")

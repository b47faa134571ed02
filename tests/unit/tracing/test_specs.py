"""What a buffer holds is said where the trace does not."""

import pandas as pd

from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.recording.labels import Labels


def test_a_variables_shape_fills_an_empty_one_and_changes_no_other() -> None:
    # GIVEN a buffer without a shape, one with another shape, and one that nothing is known of
    table = pd.DataFrame({"dtype": ["", "float32", ""], "shape": ["", "[6]", ""]})
    labels = Labels(3)
    labels.specs = {0: TensorSpec("float16", (2, 3)), 1: TensorSpec("float32", (2, 3))}
    # WHEN the labels are applied
    found = labels.apply(table)
    # THEN only the first has got one
    assert found["shape"].tolist() == ["[2,3]", "[6]", ""]
    assert found["dtype"].tolist() == ["float16", "float32", ""]

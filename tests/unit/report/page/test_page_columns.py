import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest

from analyzer.report.page.build import pack

TYPES = {"u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "f8": np.float64}


def unpack(text: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Undo pack as decode.js does."""
    raw = gzip.decompress(base64.b64decode(text))
    length = int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4 : 4 + length])
    offset, columns = 4 + length, {}
    for column in header["columns"]:
        dtype = np.dtype(TYPES[column["type"]])
        size = column["length"] * dtype.itemsize
        planes = np.frombuffer(raw[offset : offset + size], np.uint8)
        values = planes.reshape(dtype.itemsize, -1).T.copy().view(dtype).ravel()
        columns[column["name"]] = (
            np.cumsum(values.astype(float)) if column["delta"] else values
        )
        offset += size
    assert offset == len(raw)
    return header, columns


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0],
        [255, 0],
        [256, 3],
        [70_000, 1],
        [2**40, 5],
        [1, 2, 2, 900_000],
        [0.5, 0.25],
        [2**52, 0],
    ],
)
def test_what_is_packed_is_unpacked(values: list[float]) -> None:
    _, columns = unpack(
        pack({}, {"first": np.array(values), "second": np.array([1, 0])})
    )
    assert columns["first"].tolist() == values
    assert columns["second"].tolist() == [1, 0]

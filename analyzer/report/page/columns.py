"""Pack columns of numbers and a JSON header as compressed text for a page.

The page decodes the same layout in ``decode.js``::

    base64(gzip( u32 header length | header, UTF-8 JSON | column bytes | column bytes | ... ))

Each column has the smallest unsigned type that fits (else float64). A column that never decreases is
stored as differences, and bytes of equal significance are stored together; both help gzip.
``header["columns"]`` lists name, type, length and whether it stores differences, in the order of the
bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

_UNSIGNED: Final = (("u1", np.uint8), ("u2", np.uint16), ("u4", np.uint32))
_COMPRESSION_LEVEL: Final = 6  # of gzip: zlib's default


@dataclass
class StringTable:
    """A table of texts without duplicates; columns store places in it. Place 0 is the empty text."""

    texts: list[str] = field(default_factory=lambda: [""])
    places: dict[str, int] = field(default_factory=lambda: {"": 0})

    def place(self, text: str) -> int:
        """Return the place of ``text``; a new text is added."""
        if text not in self.places:
            self.places[text] = len(self.texts)
            self.texts.append(text)
        return self.places[text]

    def encode(self, values: pd.Series[Any]) -> npt.NDArray[np.int64]:
        """Return the place of every value, shape (n,); a missing value is the empty text."""
        categorical = values.astype("category")
        places = [self.place(str(text)) for text in categorical.cat.categories]
        places.append(0)  # code -1, a missing value, reads the last place
        codes = np.asarray(categorical.cat.codes, dtype=np.int64)
        return np.array(places, dtype=np.int64)[codes]


def pack(header: Mapping[str, Any], columns: Mapping[str, npt.ArrayLike]) -> str:
    """Return header and columns (shape (n,), none negative) as base64 text for ``decode.js``."""
    stored = {name: _store(np.asarray(values)) for name, values in columns.items()}
    described = [
        {"name": name, "type": kind, "length": length, "delta": delta}
        for name, (kind, length, delta, _) in stored.items()
    ]
    text = json.dumps({**header, "columns": described}, allow_nan=False)
    head = text.encode("ascii")
    body = b"".join(data for _, _, _, data in stored.values())
    raw = len(head).to_bytes(4, "little") + head + body
    return base64.b64encode(gzip.compress(raw, _COMPRESSION_LEVEL, mtime=0)).decode("ascii")


def _store(values: npt.NDArray[Any]) -> tuple[str, int, bool, bytes]:
    """Return type, length, whether it stores differences, and the bytes of a column."""
    delta = bool(values.size > 1 and np.all(values[1:] >= values[:-1]))
    if delta:
        values = np.diff(values, prepend=values.dtype.type(0))
    kind, stored = _smallest(values)
    shuffled = stored.view(np.uint8).reshape(-1, stored.itemsize).T
    return kind, int(stored.size), delta, shuffled.tobytes()


def _smallest(values: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    whole = values.size == 0 or np.issubdtype(values.dtype, np.integer)
    highest = int(values.max()) if whole and values.size else 0
    for kind, dtype in _UNSIGNED:
        if whole and highest <= np.iinfo(dtype).max:
            return kind, np.ascontiguousarray(values, dtype=dtype)
    return "f8", np.ascontiguousarray(values, dtype=np.float64)

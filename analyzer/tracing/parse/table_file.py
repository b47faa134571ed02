"""Tables in a file of their own, without loss.

The format is NumPy's ``.npz``, a zip of plain arrays: numbers, masks of missing values, and texts as
numbers of a list. It cannot contain code, and its unpacked size is known before it is read.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from analyzer.model.recording.schema import Column, conform

_LEAST_ROOM_BYTES: Final = 16 << 20  # every file may unpack to this size
_UNPACKED_SHARE: Final = 100  # limit of the ratio of compression above that size


def write_tables(path: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write tables, by name, into ``path``, an ``.npz``."""
    arrays: dict[str, np.ndarray] = {}
    for table_name, table in tables.items():
        for column in table.columns:
            name, values = f"{table_name}.{column}", table[column]
            if str(values.dtype) == "category":
                texts = json.dumps(
                    [str(category) for category in values.cat.categories]
                )
                arrays[name] = values.cat.codes.to_numpy(np.int32)
                arrays[f"{name}.texts"] = np.frombuffer(texts.encode(), dtype=np.uint8)
            elif str(values.dtype) == "Int64":
                arrays[name] = values.fillna(0).to_numpy(np.int64)
                arrays[f"{name}.missing"] = values.isna().to_numpy()
            else:
                arrays[name] = values.to_numpy()

    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_tables(
    path: Path, schemas: Mapping[str, Mapping[str, Column]]
) -> dict[str, pd.DataFrame]:
    """Return the tables of a file, with exactly the columns of their schemas.

    A damaged file raises an exception of zipfile, zlib, NumPy or JSON, or for a missing column.
    """
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _LEAST_ROOM_BYTES + _UNPACKED_SHARE * path.stat().st_size:
        raise ValueError(f"it unpacks to {unpacked} bytes")

    with np.load(path, allow_pickle=False) as arrays:
        tables = {}
        for name, schema in schemas.items():
            kinds = schema.items()
            columns = {
                one: _series(arrays, f"{name}.{one}", kind.dtype) for one, kind in kinds
            }
            tables[name] = conform(pd.DataFrame(columns), dict(schema))

        return tables


def _series(arrays: Any, name: str, dtype: str) -> pd.Series[Any]:
    values = arrays[name]
    if values.ndim != 1:
        raise ValueError(f"{name} is not a column")

    if dtype == "category":
        texts = json.loads(bytes(arrays[f"{name}.texts"]))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} does not contain texts")
        return pd.Series(pd.Categorical.from_codes(values, texts))

    if dtype == "Int64":
        return pd.Series(pd.arrays.IntegerArray(values, arrays[f"{name}.missing"]))
    return pd.Series(values)

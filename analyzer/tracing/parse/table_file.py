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
    for name, table in tables.items():
        for column in table.columns:
            arrays.update(_arrays(f"{name}.{column}", table[column]))
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_tables(path: Path, schemas: Mapping[str, Mapping[str, Column]]) -> dict[str, pd.DataFrame]:
    """Return the tables of a file, with exactly the columns of their schemas.

    Raises:
        Exception: It is damaged; an exception of zipfile, zlib, NumPy or JSON, or a missing column.
    """
    _refuse_bombs(path)
    with np.load(path, allow_pickle=False) as arrays:
        return {
            name: conform(
                pd.DataFrame(
                    {
                        column: _series(arrays, f"{name}.{column}", kind.dtype)
                        for column, kind in schema.items()
                    }
                ),
                dict(schema),
            )
            for name, schema in schemas.items()
        }


def _refuse_bombs(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _LEAST_ROOM_BYTES + _UNPACKED_SHARE * path.stat().st_size:
        raise ValueError(f"it unpacks to {unpacked} bytes")


def _text(values: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)


def _arrays(name: str, column: pd.Series[Any]) -> dict[str, np.ndarray]:
    if str(column.dtype) == "category":
        categories = [str(category) for category in column.cat.categories]
        return {name: column.cat.codes.to_numpy(np.int32), f"{name}.texts": _text(categories)}
    if str(column.dtype) == "Int64":
        missing = column.isna().to_numpy()
        return {name: column.fillna(0).to_numpy(np.int64), f"{name}.missing": missing}
    return {name: column.to_numpy()}


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

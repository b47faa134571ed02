"""The blocks into which oneDNN divides a product for the threads of an AVX-512 processor.

``compute_blocking_heuristic_avx512`` (``src/cpu/x64/matmul/brgemm_matmul_utils.cpp`` of oneDNN 3.7)
for float32 operands of known shapes: of all numbers of rows in a block, column blocks at a time and
threads that share the depth, it takes the first that spreads the work most evenly. The size of the
scratchpad follows from the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

_MOST_ROWS: Final = 256
_LEAST_ROWS: Final = 32
_LEAST_ROWS_OF_LITTLE: Final = 16
_COLUMNS: Final = 64
_COLUMNS_OF_LITTLE: Final = 32
_DEPTH: Final = 512
_LARGE_DEPTH: Final = 1024
_LITTLE_ROWS: Final = 40
_LITTLE_ROWS_TRANSPOSED: Final = 512
_DIVIDED_DEPTH: Final = 2048
_HUGE_DEPTH: Final = 20_000
_HUGE_COLUMNS: Final = 20_000
_MOST_CHUNKS: Final = 16
_BLOCKED_AXES: Final = 3
"""Most axes for which oneDNN has layouts in blocks of columns (``pick_blocked_B_layout``)."""
_VECTOR: Final = 16
"""Float32 numbers in a cache line."""

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two matrices, or of a batch of them.

    Attributes:
        rows, columns, depth: Rows and columns of the result, and length of the summed axis.
        batch: Number of products.
        axes: Axes of the operands.
        is_left_transposed: Whether the left operand is stored with its depth first.
        threads: Threads that share the work.
    """

    rows: int
    columns: int
    depth: int
    batch: int
    axes: int
    is_left_transposed: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Blocking:
    """The block that a thread computes at a time.

    Attributes:
        rows: Rows of the left operand.
        columns: Columns of the right operand.
        depth: Numbers of each row and column that are multiplied.
        depth_threads: Threads that share the depth; if several, each has its own result.
    """

    rows: int
    columns: int
    depth: int
    depth_threads: int

    @property
    def left_row(self) -> int:
        """Distance in numbers between rows of a copied left operand (``get_actual_lda``)."""
        row = -(-self.depth // _VECTOR) * _VECTOR
        is_power_of_two = not row & (row - 1)
        return row + _VECTOR if row >= _DEPTH and is_power_of_two else row


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidates, in the order in which oneDNN tries them.

    Attributes:
        rows: Rows of a block, one entry per candidate.
        chunks: Column blocks at a time, one entry per candidate.
        columns: Columns of a block.
        depth: Depth of a block.
        split: Threads that share the depth.
    """

    rows: _Numbers
    chunks: _Numbers
    columns: int
    depth: int
    split: int


@dataclass(slots=True)
class _Search:
    """The sizes among which oneDNN looks for a block.

    Attributes:
        most_rows, least_rows: Rows of a block.
        most_chunks: Most column blocks at a time.
        columns: Columns of a block.
        depth: Depth of a block.
        fewest_split, most_split: Threads that share the depth.
    """

    most_rows: int
    least_rows: int
    most_chunks: int
    columns: int
    depth: int
    fewest_split: int = 1
    most_split: int = 1


@lru_cache(maxsize=4096)
def find_blocking(product: Product) -> Blocking:
    """Return the blocks of oneDNN for a float32 product."""
    search = _choose_search(product)
    columns, depth = search.columns, search.depth
    candidates = _list_candidates(search.most_chunks, search.most_rows, search.least_rows)
    best, least = Blocking(1, columns, depth, 1), np.float32(1)
    for split in range(search.most_split, search.fewest_split - 1, -1):
        tried = _Candidates(*candidates, columns, depth, split)
        uneven = _find_imbalance(product, tried)
        if search.most_split == 1:
            uneven = np.where(_find_idle(product, tried), np.inf, uneven)
        first = int(uneven.argmin())
        if not uneven[first] < least:
            tried = _Candidates(np.array([search.least_rows]), np.array([1]), columns, depth, split)
            uneven, first = _find_imbalance(product, tried), 0
        if uneven[first] < least:
            best, least = Blocking(int(tried.rows[first]), columns, depth, split), uneven[first]
    return best


def _choose_search(product: Product) -> _Search:
    """Return the sizes to try for a product."""
    is_transposed = product.is_left_transposed
    most_rows = min(_MOST_ROWS, product.rows)
    columns = min(_COLUMNS, product.columns)
    column_blocks = -(-product.columns // columns)
    is_extended = product.depth > _LARGE_DEPTH and not is_transposed
    search = _Search(
        most_rows=most_rows,
        least_rows=min(_LEAST_ROWS, product.rows),
        most_chunks=min(_MOST_CHUNKS if is_transposed else 1, column_blocks),
        columns=columns,
        depth=min(product.depth, _LARGE_DEPTH if is_extended else _DEPTH),
    )
    work = product.batch * column_blocks * -(-product.rows // most_rows)
    if product.threads > product.batch * column_blocks:  # low_parallel_work
        _adapt_to_little_work(search, product, work)
    is_wide = product.columns >= _HUGE_COLUMNS and product.rows % most_rows == 0
    if search.most_split == 1 and is_wide and work > 10 * product.threads:
        search.least_rows = most_rows
    return search


def _adapt_to_little_work(search: _Search, product: Product, work: int) -> None:
    """Allow smaller blocks, and threads that share the depth, if threads outnumber the columns' blocks.

    Args:
        work: Number of its largest blocks.
    """
    search.least_rows = min(_LEAST_ROWS_OF_LITTLE, product.rows)
    few_rows = _LITTLE_ROWS_TRANSPOSED if product.is_left_transposed else _LITTLE_ROWS
    # Up to three axes the layout has blocks of columns, which are then not changed.
    if product.rows <= few_rows and product.axes > _BLOCKED_AXES:
        search.columns = min(product.columns, _COLUMNS_OF_LITTLE)
    is_tall = product.is_left_transposed and product.depth >= _DIVIDED_DEPTH
    if product.batch == 1 and is_tall:
        search.most_split = min(product.threads, 4)
    if product.depth >= _HUGE_DEPTH and max(product.rows, product.columns) <= _DEPTH:
        depth_blocks = -(-product.depth // search.depth)
        split = _count_depth_threads(work, depth_blocks, product.threads)
        search.fewest_split = search.most_split = split


def _list_candidates(
    most_chunks: int, most_rows: int, least_rows: int
) -> tuple[_Numbers, _Numbers]:
    """Return all candidates: rows of a block, and column blocks at a time."""
    rows = np.arange(most_rows, least_rows - 1, -1, dtype=np.int64)
    chunks = np.arange(most_chunks, 0, -1, dtype=np.int64)
    return np.tile(rows, len(chunks)), np.repeat(chunks, len(rows))


def _find_idle(product: Product, tried: _Candidates) -> npt.NDArray[np.bool_]:
    """Return for each candidate whether threads run out of work at the end; oneDNN skips it."""
    threads = product.threads // tried.split
    column_chunks = -(-product.columns // (tried.columns * tried.chunks))
    work = product.batch * -(-product.rows // tried.rows) * column_chunks
    idle: npt.NDArray[np.bool_] = (work < 3 * threads) & (work % threads != 0)
    return idle


def _find_imbalance(product: Product, tried: _Candidates) -> npt.NDArray[np.float32]:
    """Return the imbalance of work of each candidate, 0 for none (``get_imbalance``)."""
    rows, chunks, columns, split = tried.rows, tried.chunks, tried.columns, tried.split
    threads = product.threads // split
    row_blocks, blocks = -(-product.rows // rows), -(-product.columns // columns)
    work = row_blocks * -(-product.columns // (columns * chunks)) * product.batch
    of_rows = _divide(rows * row_blocks % product.rows, product.rows)
    of_chunks = _divide(-(-blocks // chunks) * chunks - blocks, blocks)
    of_threads = _divide(np.array([product.threads - threads * split]), product.threads)
    of_depth = _find_spatial_imbalance(np.array([product.depth]), split * tried.depth)
    total = _find_spatial_imbalance(work, threads) + of_rows + of_chunks + of_threads + of_depth
    uneven: npt.NDArray[np.float32] = total / np.float32(5)
    return uneven


def _find_spatial_imbalance(work: _Numbers, block: int) -> npt.NDArray[np.float32]:
    """Return the imbalance of a last block, as a share (``calculate_spatial_disbalance``)."""
    left = work % block
    return _divide(np.where(work < block, block - left, np.minimum(block - left, left)), block)


def _divide(part: _Numbers, whole: int) -> npt.NDArray[np.float32]:
    share: npt.NDArray[np.float32] = part.astype(np.float32) / np.float32(whole)
    return share


def _count_depth_threads(work: int, depth_blocks: int, threads: int) -> int:
    """Return the threads that share the depth, for huge depth and few rows and columns.

    Args:
        work: Blocks that can be computed in parallel otherwise.
        depth_blocks: Blocks of the depth.
        threads: Threads in all.
    """
    side_by_side = max(n for n in range(1, min(work, threads) + 1) if work % n == 0)
    split = max(threads // side_by_side, 1)
    left = threads % side_by_side
    while split <= left:
        side_by_side //= _find_least_factor(side_by_side)
        split = max(threads // side_by_side, 1)
        left = threads % side_by_side
    while depth_blocks <= 5 * split and split > 1:
        split //= _find_least_factor(split)
    return split


def _find_least_factor(number: int) -> int:
    return next((n for n in range(2, number) if number % n == 0), number)

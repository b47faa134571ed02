"""Scratchpads of oneDNN's batched products with AVX-512: ``brgemm_matmul_utils.cpp`` of oneDNN 3.7.

Not modelled: AMX tiles, which some processors use for 16-bit types, and products 20,000 deep or
wide. Measured on a processor without AMX: 930 of 930 products of float32 and bfloat16, of
random sizes, on 1 to 8 threads.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from analyzer.simulate.kernels.shared.op_call import FLOAT_BYTES

_HEADER_BYTES = 128  # alignment of each buffer of a scratchpad
_BATCH_BYTES = 640  # bytes per thread of the list of blocks
_VECTOR_BYTES = 64  # bytes of an AVX-512 vector, and of a line of the cache


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of products of matrices; sizes in elements, ``left`` and ``right`` as in memory."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    transposes: tuple[bool, bool]
    threads: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class _Blocks:
    rows: int
    columns: int
    depth: int
    chunk: int  # blocks of columns that a thread takes at once
    splits: int  # threads that share the depth of a product


@lru_cache(4096)
def find_scratch_bytes(product: Product) -> int:
    """Return the bytes of a scratchpad (``init_scratchpad``): lists of blocks and copies of operands.

    The primitive reads operands by rows, so each thread copies its block of a transposed one. It
    also copies right operands of 16-bit types, to interleave pairs of rows, and those of float32
    whose rows lie a large power of two apart (``use_buffer_b``). Partial sums need float32 buffers.
    """
    batch, rows, depth, columns = _find_sizes(product)
    if not batch * rows * depth * columns:
        return 0
    item_bytes, is_float = product.item_bytes, product.item_bytes == FLOAT_BYTES
    is_left_turned, is_right_turned = product.transposes[0] and rows > 1, product.transposes[1]
    blocks = _choose_blocks(product)
    is_plain = _is_short(product) and rows <= 40 and not any(product.transposes)
    buffers = [_BATCH_BYTES]
    line = _VECTOR_BYTES // item_bytes
    padded = -(-blocks.depth // line) * line
    is_far = item_bytes * depth >= 8192 and depth.bit_count() == 1 and rows >= 1024
    if is_left_turned or (is_far and not is_float):
        apart = padded + line if padded >= 512 and padded.bit_count() == 1 else padded
        buffers.append(item_bytes * blocks.rows * apart)
    is_wide = columns > 256 and columns.bit_count() == 1 and not is_plain
    if is_right_turned or not is_float or is_wide:
        width = 64 if blocks.columns == columns else blocks.columns
        buffers.append(item_bytes * width * padded)
    if depth > blocks.depth and (blocks.splits > 1 or not is_float):
        sums = columns * rows if blocks.splits > 1 else blocks.columns * blocks.rows * blocks.chunk
        buffers.append(FLOAT_BYTES * sums)
    return sum(_HEADER_BYTES + product.threads * size_bytes for size_bytes in buffers)


def _find_sizes(product: Product) -> tuple[int, int, int, int]:
    """Return the batch, rows, depth and columns; one right operand for all makes one tall product."""
    rows, depth = product.left[-2:][:: -1 if product.transposes[0] else 1]
    columns = product.right[-2 if product.transposes[1] else -1]
    batch = math.prod(np.broadcast_shapes(product.left[:-2], product.right[:-2]))
    if math.prod(product.right[:-2]) == 1 and not product.transposes[0]:
        return 1, batch * rows, depth, columns
    return batch, rows, depth, columns


def _is_short(product: Product) -> bool:
    """Whether the blocks of columns are fewer than the threads (``low_parallel_work``)."""
    batch, _, _, columns = _find_sizes(product)
    return product.threads > batch * -(-columns // 64)


def _choose_blocks(product: Product) -> _Blocks:
    """Return the blocks whose work is spread best (``compute_blocking_heuristic_avx512``)."""
    batch, rows, depth, columns = _find_sizes(product)
    is_float, is_turned = product.item_bytes == FLOAT_BYTES, product.transposes[0] and rows > 1
    most, least, width = min(256, rows), min(32, rows), min(64, columns)
    tall = min(depth, 1024 if depth > 1024 and not is_turned else 512)
    parts = -(-columns // width)
    most_splits = 1
    if _is_short(product):
        least = min(rows, 16)
        is_flat = rows <= 40 or (is_turned and rows <= 512)
        if is_flat and max(len(product.left), len(product.right)) > 3:
            width = min(columns, 32)
        if batch == 1 and is_turned and depth >= 2048 and (is_float or depth.bit_count() == 1):
            most_splits = min(product.threads, 4)
    chunks = np.arange(min(16 if is_turned else 1, parts), 0, -1)[:, None]
    heights = np.arange(most, least - 1, -1)[None, :]
    best, choice = np.float32(1), _Blocks(least, width, tall, 1, 1)
    for splits in range(most_splits, 0, -1):
        scores, work = _score(product, heights, chunks, width, (splits, tall))
        bmn = product.threads // splits
        is_skipped = (work < 3 * bmn) & (work % bmn != 0) & (most_splits == 1)
        scores = np.where(is_skipped, np.float32(2), scores)
        place = np.unravel_index(int(np.argmin(scores)), scores.shape)
        row, chunk, score = int(heights[0, place[1]]), int(chunks[place[0], 0]), scores[place]
        if score >= best:
            row, chunk = least, 1
            score = _score(product, np.array(least), np.array(1), width, (splits, tall))[0]
        if score < best:
            best, choice = score, _Blocks(row, width, tall, chunk, splits)
    return choice


def _score(
    product: Product, heights: Any, chunks: Any, width: int, depths: tuple[int, int]
) -> tuple[Any, Any]:
    """Return the uneven part of the work of each choice, and the work (``get_imbalance``).

    In float32, in oneDNN's order of operations, because equal scores decide by the last bit.
    """
    batch, rows, depth, columns = _find_sizes(product)
    (splits, tall), real = depths, np.float32
    others, parts = product.threads // splits, -(-columns // width)
    work = -(-rows // heights) * -(-columns // (width * chunks)) * batch
    score = _spread(work, others) + real(heights * -(-rows // heights) % rows) / real(rows)
    score = score + (real(-(-parts // chunks)) * real(chunks) - real(parts)) / real(parts)
    score = score + real(product.threads - others * splits) / real(product.threads)
    return (score + _spread(np.array(depth), splits * tall)) / real(5), work


def _spread(work: Any, block: int) -> Any:
    rest = work % block
    short = np.where(work < block, block - rest, np.minimum(block - rest, rest))
    return np.float32(short) / np.float32(block)

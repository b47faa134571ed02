"""Hold the catalogue's cards against the descriptions that XLA embeds.

    python benchmarks/xla/gpu_descriptions.py xla_cuda_plugin.so

The library of jax-cuda12-pjrt 0.12.0 embeds 23 descriptions, read off real devices by XLA's authors;
that of 0.9.0, which the extra ``xla-gpu`` installs, embeds none. Every figure that differs is printed;
the ones that are known, with the reason, are in ``KNOWN``. Exit code 1 where another differs.
"""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

from analyzer.cards import find_gpu, target_text
from analyzer.model.errors import InputError

FIELDS = (
    "threads_per_block_limit",
    "threads_per_warp",
    "shared_memory_per_block",
    "shared_memory_per_core",
    "threads_per_core_limit",
    "core_count",
    "fpus_per_core",
    "block_dim_limit_x",
    "block_dim_limit_y",
    "block_dim_limit_z",
    "memory_bandwidth",
    "l2_cache_size",
    "clock_rate_ghz",
    "device_memory_size",
    "shared_memory_per_block_optin",
    "registers_per_core_limit",
    "registers_per_block_limit",
    "major",
    "minor",
    "feature_extension",
)

_ACCELERATED = "XLA's text leaves it out; on a card XLA sets it from 9.0 on (cuda_executor.cc)"

KNOWN = {
    ("NVIDIA RTX PRO 6000 Blackwell", "feature_extension"): _ACCELERATED,
    ("NVIDIA B300", "feature_extension"): _ACCELERATED,
    ("NVIDIA RTX PRO 6000 Blackwell", "shared_memory_per_core"): (
        "XLA has the 128 KiB that L1 shares; CUDA's guide and deviceQuery of an RTX 5090 say 100 KiB"
    ),
    ("NVIDIA A100 80GB PCIe", "device_memory_size"): (
        "XLA has 73.6 GiB; deviceQuery on such a card reads 79.1 GiB"
    ),
    ("NVIDIA H200 141GB HBM3e", "device_memory_size"): (
        "XLA has the nominal 141 GiB; PyTorch on such a card reads 139.8 GiB"
    ),
}


def embedded(library: Path) -> dict[str, dict[str, str]]:
    """Return name -> figures of each NVIDIA card that the library describes."""
    found: dict[str, dict[str, str]] = {}
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for start in re.finditer(rb"gpu_device_info \{", content):
            text = content[start.start() : start.start() + 12_000]
            text = text.split(b"\0")[0].split(b"# Copyright")[0]
            name = re.search(rb'device_description_str: "([^"]*)"', text)
            if name and b"cuda_compute_capability" in text:
                found[name.group(1).decode()] = figures(text.decode("utf-8", "replace"))
    return found


def figures(text: str) -> dict[str, str]:
    """Return the first value of each field; what is left out of a text proto is 0 or NONE."""
    values = {}
    for field in FIELDS:
        match = re.search(rf"\b{field}: ([\w.]+)", text)
        default = "NONE" if field == "feature_extension" else "0"
        values[field] = match.group(1) if match else default
    return values


def main(library: Path) -> int:
    cards = embedded(library)
    print(f"{library} describes {len(cards)} NVIDIA cards")
    unexpected = 0
    for name, theirs in sorted(cards.items()):
        try:
            card = find_gpu(name)
        except InputError:
            print(f"{name}: not in the catalogue")
            continue
        ours = figures(target_text(card))
        differing = [field for field in FIELDS if not same(ours[field], theirs[field])]
        print(f"{name} = {card.id}: {len(FIELDS) - len(differing)} of {len(FIELDS)} figures agree")
        for field in differing:
            reason = KNOWN.get((name, field))
            unexpected += reason is None
            print(f"  {field}: ours {ours[field]}, XLA's {theirs[field]}: {reason or 'UNEXPECTED'}")
    return 1 if unexpected else 0


def same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

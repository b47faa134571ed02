"""``--gpu list``: the cards that can be predicted for."""

from __future__ import annotations

import typer

from analyzer.commands.stdout import printing, terminal
from analyzer.gpus import all_gpus
from analyzer.units import format_bytes

_LIST = "list"


def list_gpus(name: str) -> str:
    """Print every card and exit where the name is ``list``; else return the name."""
    if name.strip().lower() != _LIST:
        return name
    from rich.table import Table

    table = Table("--gpu", "card", "memory", "of which CUDA reports", "capability", box=None)
    for card in sorted(all_gpus(), key=lambda card: card.id):
        table.add_row(
            card.id,
            card.name,
            format_bytes(card.nominal_bytes),
            format_bytes(card.memory_bytes),
            card.capability_text,
        )
    with printing():
        terminal().print(table)
    raise typer.Exit

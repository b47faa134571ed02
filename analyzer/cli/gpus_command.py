"""``analyze gpus``: the catalogue of cards."""

from typing import Annotated

from msgspec import structs

from analyzer.cards.catalogue import Gpu, all_gpus, gpus_named, memory_limit
from analyzer.cli.outputs import check_paths, json_output, print_answer, write_all
from analyzer.cli.shared_options import Force, Full, Json, Verbose, argument
from analyzer.model.contract.fields import Lengths, ReportRecord
from analyzer.model.contract.report_file import encode_report
from analyzer.report.output_files import write_text


class CardRow(ReportRecord, frozen=True, kw_only=True):
    """One card of the list: nominal memory, memory that CUDA reports, TensorFlow's default limit.

    The compute capability of an AMD card is empty.
    """

    id: str
    name: str
    nominal_bytes: int
    memory_bytes: int
    limit_bytes: int
    compute_capability: str


class CardList(ReportRecord, frozen=True, kw_only=True):
    """The cards of the search, by name."""

    schema_version: int = 2
    cards: tuple[CardRow, ...]
    next_command: str = ""
    # full length of each list that was shortened
    shortened: Lengths = {}


def gpus(
    search: Annotated[
        list[str] | None,
        argument("Words of a card's name, or a compute capability: 4090, a100, 8.9."),
    ] = None,
    json: Json = None,
    full: Full = False,
    force: Force = False,
    verbose: Verbose = False,
) -> None:
    """List the cards of the catalogue, by search words or with -v all."""
    check_paths(json, force=force)

    words = " ".join(search or ())
    if words.strip().lower() == "list":
        words = ""
        verbose = True

    listing = _list_cards(words)
    text = encode_report(listing)

    output = json_output(json, lambda path: write_text(path, text), is_full=full)
    if not write_all(output):
        _print(listing, is_verbose=verbose)


def _list_cards(search: str) -> CardList:
    """Return the cards with all words in their name, or else the closest names."""
    words = search.lower().split()

    def matches(card: Gpu) -> bool:
        text = f"{card.id} {card.name.lower()}"
        return all(word == card.capability_text or word in text for word in words)

    cards = sorted(filter(matches, all_gpus()), key=lambda card: card.id)
    if not cards:
        cards = list(gpus_named(search))

    rows = [
        CardRow(
            id=card.id,
            name=card.name,
            nominal_bytes=card.nominal_bytes,
            memory_bytes=card.memory_bytes,
            limit_bytes=memory_limit(card).bytes,
            compute_capability="" if card.is_amd else card.capability_text,
        )
        for card in cards
    ]

    following = f"analyze fit keras:ResNet50 --gpu {cards[0].id}"

    return CardList(cards=tuple(rows), next_command=following)


def _print(listing: CardList, *, is_verbose: bool) -> None:
    from analyzer.report.render.sections import (
        COLUMNS,
        Document,
        Section,
        Table,
        TableColumn,
    )

    first = TableColumn(
        "--gpu",
        least=max(len(card.id) for card in listing.cards),
    )
    rows = [structs.astuple(row) for row in listing.cards]
    count = len(listing.cards)
    headline = "1 card." if count == 1 else f"{count} cards."

    heading = (
        "Nominal memory, memory that the driver reports, TensorFlow's default limit"
    )
    table = Table((first, *COLUMNS["cards"]), tuple(rows))
    blocks = (Section(heading, (table,)),)

    following = listing.next_command
    document = Document("", headline, sections=blocks, next_command=following)
    print_answer(document, quiet=False, is_verbose=is_verbose)

"""Write a document as Markdown in which no text of a trace is markup, a link or a mention."""

from collections.abc import Iterable, Iterator

from analyzer.report.render import sections
from analyzer.report.untrusted import markdown_code, markdown_text, plain_text

_CODE_INDENT = "      "


def to_markdown(document: sections.Document) -> str:
    """Return a document as Markdown; drawings and bars are left out."""
    lines = [f"### {markdown_text(document.headline)}", ""]
    for notice in document.notices:
        lines += [f"**{markdown_text(notice)}**", ""]

    lines += _blocks(document.lead)

    for section in document.sections:
        if section.heading:
            lines += [
                f"{'#' * (3 + section.level)} {markdown_text(section.heading)}",
                "",
            ]

        lines += [*_blocks(section.blocks), ""]

    return "\n".join(lines).rstrip() + "\n"


def _blocks(blocks: Iterable[sections.Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, sections.Paragraph):
            yield from (_paragraph(block), "")
        elif isinstance(block, sections.Table):
            yield from (*_table(block), "")
        elif isinstance(block, sections.Item):
            yield from _item(block)


def _paragraph(paragraph: sections.Paragraph) -> str:
    parts = []
    for text, tone in paragraph.pieces:
        shown = markdown_text(text)  # without the spaces at its ends
        before, after = (" " if end.isspace() else "" for end in (text[:1], text[-1:]))
        parts.append(f"**{shown}**" if tone == "strong" else f"{before}{shown}{after}")

    return f"{'> ' if paragraph.tone == 'warning' else ''}{''.join(parts)}"


def _table(table: sections.Table) -> Iterator[str]:
    places = [
        place for place, column in enumerate(table.columns) if column.kind != "bar"
    ]
    columns = [table.columns[place] for place in places]
    yield f"| {' | '.join(markdown_text(column.name) for column in columns)} |"
    yield f"|{'|'.join('--:' if column.is_number else '---' for column in columns)}|"

    for row in table.rows:
        cells = []

        for column, place in zip(columns, places, strict=True):
            cell = sections.cell_of(row[place])
            text = sections.cell_text(cell, column.kind)
            shown = (
                markdown_code if column.kind == "path" and text else markdown_text
            )(text)
            cells.append(f"**{shown}**" if cell.tone == "strong" and shown else shown)

        yield f"| {' | '.join(cells)} |"

    if table.caption:
        yield from ("", markdown_text(table.caption))


def _item(item: sections.Item) -> Iterator[str]:
    gain = f" ({markdown_text(item.gain)})" if item.gain else ""
    yield f"- **{markdown_text(item.label)}**: {markdown_text(item.title)}{gain}"
    if item.detail:
        yield f"  {markdown_text(item.detail)}"
    if item.code:
        yield from ("", *_code(item.code), "")
    if item.check:
        yield f"  Check: {markdown_code(item.check)}"


def _code(code: str) -> Iterator[str]:
    return (f"{_CODE_INDENT}{plain_text(line)}" for line in code.splitlines())

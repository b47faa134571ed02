"""Write a document as Markdown in which no text of a trace is markup, a link or a mention."""

from collections.abc import Iterable, Iterator

from analyzer.report.render import sections
from analyzer.report.untrusted import markdown_code, markdown_text, plain_text

_CODE_INDENT = "      "


def to_markdown(document: sections.Document) -> str:
    """Return a document as Markdown, without drawings, bars and folded sections."""
    lines = [f"### {markdown_text(document.headline)}", ""]

    for notice in document.notices:
        lines += [f"**{markdown_text(notice)}**", ""]

    lines += _blocks(document.lead)

    for section in document.sections:
        if section.is_folded:
            continue

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

        if tone == "strong":
            parts.append(f"**{shown}**")
            continue

        before = " " if text[:1].isspace() else ""
        after = " " if text[-1:].isspace() else ""
        parts.append(f"{before}{shown}{after}")

    quote = "> " if paragraph.tone == "warning" else ""
    text = "".join(parts)

    return f"{quote}{text}"


def _table(table: sections.Table) -> Iterator[str]:
    places = []
    names = []
    rules = []

    for place, column in enumerate(table.columns):
        if column.kind != "bar":
            places.append(place)
            names.append(markdown_text(column.name))
            rules.append("--:" if column.is_number else "---")

    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join(rules)}|"

    for row in table.rows:
        cells = []

        for place in places:
            cell = sections.cell_of(row[place])
            kind = table.columns[place].kind
            text = sections.cell_text(cell, kind)

            shown = markdown_text(text)

            if kind == "path" and text:
                shown = markdown_code(text)

            if cell.tone == "strong" and shown:
                shown = f"**{shown}**"

            cells.append(shown)

        yield f"| {' | '.join(cells)} |"

    if table.caption:
        yield from ("", markdown_text(table.caption))


def _item(item: sections.Item) -> Iterator[str]:
    label = markdown_text(item.label)
    title = markdown_text(item.title)
    gain = f" ({markdown_text(item.gain)})" if item.gain else ""

    yield f"- **{label}**: {title}{gain}"

    if item.code:
        yield ""

        for line in item.code.splitlines():
            yield f"{_CODE_INDENT}{plain_text(line)}"

        yield ""

    if item.check:
        yield f"  Check: {markdown_code(item.check)}"

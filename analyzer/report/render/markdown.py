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
    text = markdown_text(paragraph.text)
    if paragraph.tone == "strong":
        return f"**{text}**"

    return f"> {text}" if paragraph.tone == "warning" else text


def _table(table: sections.Table) -> Iterator[str]:
    columns = [column for column in table.columns if column.kind != "bar"]
    names = [markdown_text(column.name) for column in columns]
    rules = ["--:" if column.is_number else "---" for column in columns]

    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join(rules)}|"

    for row in table.rows:
        cells = []

        for column, value in zip(table.columns, row, strict=True):
            text = sections.cell_text(sections.cell_of(value), column.kind)
            write = markdown_code if column.kind == "path" and text else markdown_text

            if column.kind != "bar":
                cells.append(write(text))

        yield f"| {' | '.join(cells)} |"


def _item(item: sections.Item) -> Iterator[str]:
    title = markdown_text(item.title)
    gain = f" ({markdown_text(item.gain)})" if item.gain else ""

    yield f"- **{markdown_text(item.label)}**: {title}{gain}"

    if item.code:
        yield ""

        for line in item.code.splitlines():
            yield f"{_CODE_INDENT}{plain_text(line)}"

        yield ""

    if item.check:
        yield f"  Check: {markdown_code(item.check)}"

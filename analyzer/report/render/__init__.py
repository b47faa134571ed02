"""One model of a document, and its renderings for terminal, Markdown and HTML pages."""

"""Build the report of an analysis, and render it for each output.

Input: an ``Analysis`` of ``explain``. ``document`` builds the report (the JSON); ``report_sections`` and
``diff_sections`` build documents, which ``render`` shows in the terminal, in Markdown and as pages;
``page`` is the interactive page. Names and messages of a trace are untrusted; renderers escape them.
"""

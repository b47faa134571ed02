"""``analyze mcp``: serve the commands to coding agents."""

from analyzer.model.errors import InputError


def mcp() -> None:
    """Serve the commands to coding agents over the Model Context Protocol.

    The client starts this command in the project's folder and speaks on standard input and output.
    """
    try:
        from analyzer.cli.agents.mcp_server import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("anyio", "mcp", "mcp_types"):
            raise

        raise InputError(
            "The server needs the package `mcp`, version 2.",
            "Install the extra: pip install 'tf-memory-analyzer[mcp]'.",
        ) from None

    serve()

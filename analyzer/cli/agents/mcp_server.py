"""The MCP server: each command is a tool, which runs in a child process and returns its short JSON."""

import inspect
import json
import re
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from tempfile import TemporaryDirectory
from types import UnionType
from typing import Any, get_args, get_origin

import anyio
import mcp_types as protocol
import typer
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from mcp.server import Server
from mcp.server.stdio import stdio_server

from analyzer.cli.app import COMMANDS, load_function
from analyzer.cli.skill_command import read_skill
from analyzer.model import __version__
from analyzer.model.errors import InputError
from analyzer.report.short_json import shorten

_OTHERS = ("skill", "mcp")  # commands that are no tools

# Options of outputs that an agent does not read, and those that the server sets.
_LEFT_OUT = frozenset(
    {
        "json",
        "full",
        "quiet",
        "verbose",
        "live",
        "csv",
        "markdown",
        "graph",
        "max_peak",
        "scheduler",
    }
)

_CHILD = """
from analyzer.model.interrupts import die_with_parent
die_with_parent()
from analyzer.cli import main
main()
"""
_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", list: "array"}
_STAGE = re.compile(r" *(\d+\.\d) s  (.+)")  # a line of --verbose
_MESSAGES = 30  # last lines of output in an error
_GRACE_S = 10.0  # for a cancelled command to end its own children

# Called with the seconds since the start of a command, and its stage.
Report = Callable[[float, str], Awaitable[None]]


def serve() -> None:
    """Serve on standard input and output until the client closes them.

    Ctrl-C ends this process at once, whose reader cannot be cancelled, and its end that of the commands.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_serve)


async def _serve() -> None:
    server = make_server()
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def make_server() -> Any:
    """Return the server, whose instructions are the skill."""
    tools = {name: ToolCommand(name) for name in COMMANDS if name not in _OTHERS}

    async def list_tools(context: Any, page: Any) -> Any:
        return protocol.ListToolsResult(
            tools=[tool.describe() for tool in tools.values()]
        )

    async def call_tool(context: Any, call: Any) -> Any:
        async def report(seconds: float, stage: str) -> None:
            await context.session.report_progress(seconds, message=stage)

        try:
            if call.name not in tools:
                known = ", ".join(tools)
                raise InputError(f"There is no tool {call.name}.", f"Use {known}.")

            return await tools[call.name].run(call.arguments or {}, report)
        except InputError as error:
            return _result(str(error), is_error=True)

    return Server(
        "tf-memory-analyzer",
        version=__version__,
        instructions=read_skill().split("---\n", 2)[-1],
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _result(text: str, *, is_error: bool = False) -> Any:
    content = protocol.TextContent(type="text", text=text)
    return protocol.CallToolResult(content=[content], is_error=is_error)


class ToolCommand:
    """A command as a tool: its parameters are those of the command line."""

    def __init__(self, name: str) -> None:
        self.name = name
        own = inspect.signature(load_function(name)).parameters
        self._has_stages = "verbose" in own
        self._parameters = {
            key: one for key, one in own.items() if key not in _LEFT_OUT
        }

    def describe(self) -> Any:
        """Return the tool's name, description and input schema."""
        properties = {}
        required = []

        for key, parameter in self._parameters.items():
            kind = _JSON_TYPES.get(_type(parameter), "string")
            about = {"type": kind, "description": _info(parameter).help}

            if kind == "array":
                about["items"] = {"type": "string"}
            if parameter.default is inspect.Parameter.empty:
                required.append(key)

            properties[key] = about

        schema = {"type": "object", "properties": properties, "required": required}

        return protocol.Tool(
            name=self.name,
            description=COMMANDS[self.name],
            input_schema=schema,
        )

    def write_words(self, arguments: dict[str, Any]) -> list[str]:
        """Return the words of the command line for a call's arguments."""
        unknown = ", ".join(arguments.keys() - self._parameters.keys())
        if unknown:
            known = ", ".join(self._parameters)
            raise InputError(f"{self.name} has no {unknown}.", f"Use {known}.")

        options: list[str] = []
        positions: list[str] = []

        for key, parameter in self._parameters.items():
            value = arguments.get(key)
            if value is None:
                continue

            info = _info(parameter)
            if isinstance(info, typer.models.ArgumentInfo):
                positions += map(str, value if isinstance(value, list) else [value])
            else:
                options += _write_option(key, info, value)

        return [self.name, *options, "--", *positions]

    async def run(self, arguments: dict[str, Any], report: Report) -> Any:
        """Run the command in a child and return its document, or its last messages as an error."""
        with TemporaryDirectory(prefix="analyze-") as folder:
            answer = Path(folder) / "answer.json"
            name, *words = self.write_words(arguments)
            stages = ["--verbose"] if self._has_stages else []
            command = [sys.executable, "-c", _CHILD, name, f"--json={answer}"]
            code, messages = await _run_child([*command, *stages, *words], report)

            if answer.is_file():
                document = json.loads(answer.read_text("utf-8"))
                return _result(shorten({"exit_code": code, **document}))

        lines = [line for line in messages if not _STAGE.match(line)]
        return _result("\n".join(lines) or f"Exit code {code}.", is_error=code != 0)


def _info(parameter: inspect.Parameter) -> Any:
    """Return Typer's record of a parameter."""
    return get_args(parameter.annotation)[1]


def _type(parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter's value, without None."""
    kind = get_args(parameter.annotation)[0]
    if isinstance(kind, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))

    return get_origin(kind) or kind


def _write_option(name: str, info: Any, value: Any) -> Iterator[str]:
    """Yield the words of an option; ``--jit/--no-jit`` names both values of a flag."""
    flags = next(iter(info.param_decls or ()), f"--{name}")
    flag, _, opposite = flags.partition("/")
    flag = flag.replace("_", "-")

    if value is True:
        yield flag
    elif value is False:
        yield from filter(None, [opposite])
    else:
        for one in value if isinstance(value, list) else [value]:
            yield f"{flag}={one}"


async def _run_child(command: list[str], report: Report) -> tuple[int, list[str]]:
    """Return the exit code and the last lines of a command; a cancellation ends it."""
    process = await anyio.open_process(
        command,
        stdin=DEVNULL,
        stderr=STDOUT,
        start_new_session=True,
    )

    messages = deque([""], _MESSAGES)
    assert process.stdout is not None

    try:
        async for part in TextReceiveStream(process.stdout, errors="replace"):
            first, *others = part.split("\n")
            messages[-1] += first
            messages.extend(others)
            for stage in filter(None, map(_STAGE.match, part.split("\n"))):
                await report(float(stage[1]), stage[2])

        await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)

    code = process.returncode

    return 1 if code is None else code, [line for line in messages if line]


async def _end(process: Process) -> None:
    """End a command that still runs: politely, so that it ends its own children, then by force."""
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(_GRACE_S):
            await process.wait()

    if process.returncode is None:
        process.kill()

    await process.aclose()

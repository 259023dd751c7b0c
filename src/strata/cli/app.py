"""The command line's frame: global options, exit codes, and how an error looks.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 stopped by Ctrl-C. An error is one line on stderr;
``--debug`` adds the traceback.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import ckpt, config, coordinator, data, demo, run, status, version
from strata.errors import StrataError

if TYPE_CHECKING:
    from types import TracebackType

app = typer.Typer(
    name="strata",
    help="The runtime under a distributed training run: data, step and state, exact through any failure.",
    epilog="Every command has its own --help. Settings: docs/configuration.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("version")(version.show_version)
app.command("config")(config.show_config)
app.command("demo")(demo.run_demo)
app.command("run", context_settings=run.CONTEXT)(run.run_job)
app.command("coordinator")(coordinator.run_coordinator)
app.command("status")(status.show_status)
app.command("events")(status.show_events)
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(data.app, name="data")


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: FBT002
) -> None:
    sys.excepthook = _show_traceback if debug else _show_line


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    sys.excepthook = _show_line
    try:
        code = app(arguments, prog_name="strata", standalone_mode=False)
    except typer.TyperException as error:
        # Called without a command, it has printed the help already and the message is empty.
        if message := error.format_message().rstrip("."):
            _print_error(f"{message}. Try 'strata --help'.")
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(1)
    sys.exit(code or 0)


def _show_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, StrataError):
        _print_error(str(error))
    else:
        _print_error(f"internal error: {kind.__name__}: {error}. Run again with 'strata --debug ...' and report it.")


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)


def _print_error(message: str) -> None:
    one_line = " ".join(message.split())
    sys.stderr.write(f"strata: error: {one_line}\n")

"""The command line's frame: global options, exit codes, and how an error looks.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 stopped by Ctrl-C. An error is one line on stderr;
``--debug`` adds the traceback.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import config, coordinator, data, demo, doctor, job, journal, rewind, run, version
from strata.cli.access import tenants, tls, token
from strata.cli.checkpoints import ckpt
from strata.cli.watch import dashboard, goodput, status, top
from strata.errors import StrataError

if TYPE_CHECKING:
    from types import TracebackType

app = typer.Typer(
    name="strata",
    help="The runtime under a distributed training run: data, step and state, exact through any failure.",
    epilog="Start with: strata demo. Every command has a --help with an example. Settings: docs/configuration.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("version", epilog="Example: strata version --json")(version.show_version)
app.command("config", epilog="Example: STORAGE_BACKEND=s3 CHECKPOINT_BUCKET=my-bucket strata config")(
    config.show_config
)
app.command("doctor", epilog="Example: strata doctor --json")(doctor.check_machine)
app.command("demo", epilog="Example: strata demo --dashboard")(demo.run_demo)
app.command(
    "run", epilog="Example: strata run --standalone --nproc 4 train.py --lr 3e-4", context_settings=run.CONTEXT
)(run.run_job)
app.command(
    "coordinator",
    epilog="Example: strata coordinator --listen 0.0.0.0 --tls-cert server.pem --tls-key server-key.pem --log-json",
)(coordinator.run_coordinator)
app.command("status", epilog="Example: strata status --coordinator 10.0.0.5:50051 --watch")(status.show_status)
app.command("events", epilog="Example: strata events --follow --job llm-7b")(status.show_events)
app.command("rewind", epilog="Example: strata rewind llm-7b --to-step 12000 --skip-batches 12140..12155")(rewind.rewind)
app.command("goodput", epilog="Example: strata goodput llm-7b --coordinator 10.0.0.5:50051")(goodput.show_goodput)
app.command("top", epilog="Example: strata top llm-7b; or for a log: strata top --once")(top.show_top)
app.command("dashboard", epilog="Example: strata dashboard --coordinator http://10.0.0.5:8080 --port 3000")(
    dashboard.serve_dashboard
)
app.add_typer(job.app, name="job")
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(journal.app, name="journal")
app.add_typer(data.app, name="data")
app.add_typer(tls.app, name="tls")
app.add_typer(token.app, name="token")
app.add_typer(tenants.app, name="tenant")


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it with the value of the option
    if is_asked:
        version.show_version()
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: FBT002 - passed by name
    version: Annotated[  # noqa: FBT002 - the callback does it
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    sys.excepthook = _show_traceback if debug else _show_line


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    sys.excepthook = _show_line
    try:
        code = app(arguments, prog_name="strata", standalone_mode=False)
    except typer.TyperException as error:
        # Called without a command, it has printed the help already and the message is empty.
        if message := _describe(error):
            _print_error(f"{message} Try 'strata --help'.")
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(1)
    sys.exit(code or 0)


def _describe(error: typer.TyperException) -> str:
    """Return what is wrong with the arguments, as a sentence; empty if the help has been printed instead."""
    closest = getattr(error, "possibilities", None)
    if closest:
        return f"{error.message}; did you mean {closest[0]}?"
    message = error.format_message().rstrip(".")
    return message and f"{message}."


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

"""The command as a user meets it: a real process, its two streams and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import strata
from strata.cli.app import app, main
from tests.testbed.process import run_program, start
from tests.testbed.terminal import Terminal

COMMAND = Path(sys.executable).with_name("strata")


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}
    )


def test_help_teaches_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "version" in done.stdout
    assert "config" in done.stdout


def commands_below(group: typer.Typer, *path: str) -> list[tuple[str, ...]]:
    """Every command, as the words that are typed after ``strata``."""
    own = [(*path, command.name) for command in group.registered_commands if command.name]
    return own + [
        each for sub in group.registered_groups for each in commands_below(sub.typer_instance, *path, sub.name)
    ]


@pytest.mark.parametrize("command", commands_below(app), ids=" ".join)
def test_the_help_of_every_command_says_what_it_does_and_gives_an_example(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"Usage: strata {' '.join(command)}" in shown
    example = re.search(r"Example: (?:[A-Z_]+=\S+ )*strata (.*)", shown)
    assert example, shown
    assert example[1].split()[: len(command)] == list(command)


def test_without_a_command_it_shows_the_help_and_fails_as_used_wrongly() -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: strata" in done.stdout + done.stderr
    assert "error" not in done.stderr


def test_version_is_the_packages_version() -> None:
    assert run("version").stdout.startswith(f"strata {strata.__version__} ")
    assert run("--version").stdout == run("version").stdout
    assert json.loads(run("version", "--json").stdout)["strata"] == strata.__version__


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "strata", "version"], capture_output=True, text=True)
    assert done.stdout == run("version").stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nope"], "strata: error: No such command 'nope'. Try 'strata --help'.\n"),
        (["version", "--nope"], "strata: error: No such option: --nope. Try 'strata --help'.\n"),
        (
            ["run", "--standalone", "--nprocs", "2", "true"],
            "strata: error: No such option: --nprocs; did you mean --nproc? Try 'strata --help'.\n",
        ),
        (
            ["run", "--nproc_per_node=2", "train.py", "--max_restarts", "3"],
            "strata: error: No such option: --nproc_per_node; did you mean --nproc? Try 'strata --help'.\n",
        ),
        (
            ["run", "--rdzv-backend", "c10d", "true"],
            "strata: error: No such option: --rdzv-backend. Try 'strata --help'.\n",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_a_failure_is_one_line_and_exit_code_1() -> None:
    done = run("config", RANK="two")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("strata: error: RANK='two' (environment): expected a whole number")
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback_of_a_failure() -> None:
    done = run("--debug", "config", RANK="two")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


def test_a_bug_is_one_line_too_and_asks_for_a_report() -> None:
    script = (
        "from strata.cli.app import app, main\n"
        "@app.command()\ndef broken(): raise KeyError('two\\nlines')\n"
        "main(['broken'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("strata: error: internal error: KeyError")
    assert done.stderr.count("\n") == 1


def test_config_shows_values_and_sources_but_no_secret(tmp_path: Path) -> None:
    (tmp_path / "strata.toml").write_text('job_id = "llm"')
    done = run("config", "--json", cwd=tmp_path, RANK="3", AWS_SECRET_ACCESS_KEY="hunter2")
    shown = json.loads(done.stdout)
    assert shown["job_id"] == {"value": "llm", "source": "strata.toml"}
    assert shown["rank"] == {"value": "3", "source": "environment"}
    assert shown["world_size"] == {"value": None, "source": "default"}
    assert "hunter2" not in done.stdout
    text = run("config", cwd=tmp_path, AWS_SECRET_ACCESS_KEY="hunter2").stdout
    assert "hunter2" not in text
    assert "llm" in text


def test_colour_is_off_when_the_output_is_not_a_terminal() -> None:
    assert "\x1b" not in run("config").stdout
    assert "\x1b" not in run("--help").stdout


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_at_a_terminal_colour_is_on_unless_no_color_is_set(no_color: str, coloured: bool) -> None:
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color}
    with (
        Terminal() as terminal,
        start([COMMAND, "--help"], stdout=terminal.fd, stderr=terminal.fd, env=environment),
    ):
        pass  # the process is waited for
    assert (re.search(r"\x1b\[[0-9;]*\b[39][0-7]m", terminal.shown) is not None) is coloured, terminal.shown

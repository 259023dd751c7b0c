"""Create a virtual environment and install locked requirements: with uv if it can be had, else with pip.

    python3 scripts/environment.py .venv requirements/worker.txt …   create .venv if missing, and install
    python3 scripts/environment.py .venv --editable . …              the same, and Strata from its sources

It runs on a bare Python, so it imports the standard library only. Every package is pinned with its hash, and nothing is
resolved: pip would look at the newest release of a package that is wanted with an extra, and refuse it without a hash.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "requirements"


def install(environment: Path, *arguments: str | Path) -> None:
    """Install into an environment with uv, or with pip where uv is missing or fails."""
    python = environment / "bin" / "python"
    with_pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    if (uv := find_uv(environment)) is None:
        _run(*with_pip)
        return
    try:
        _run(uv, "pip", "install", "--quiet", "--python", python, *arguments)
    except subprocess.CalledProcessError:
        # uv does not read pip's configuration, so a mirror that only pip knows is out of its reach.
        print("uv could not install them; trying pip.", flush=True)
        _run(*with_pip)


def find_uv(environment: Path) -> str | None:
    """Return the path of uv: the environment's own, or the user's."""
    own = environment / "bin" / "uv"
    return str(own) if own.exists() else shutil.which("uv")


def provide_uv(environment: Path) -> None:
    """Install the pinned uv into the environment, unless there is one; without it, pip installs everything."""
    if find_uv(environment) is not None:
        return
    lock = environment / "uv.txt"
    lock.write_text(pin_of("uv", (LOCKS / "dev.txt").read_text()))
    python = environment / "bin" / "python"
    options = ["-qq", "--disable-pip-version-check", "--only-binary", ":all:", "--no-deps", "--require-hashes"]
    try:
        _run(python, "-m", "pip", "install", *options, "-r", lock)
    except subprocess.CalledProcessError:
        print("uv cannot be installed here; pip takes about a minute longer.", flush=True)


def pin_of(package: str, lock: str) -> str:
    """Return the entry of one package in a lock file: its version and hashes."""
    found = re.search(rf"^{re.escape(package)}==(.*\\\n)*.*\n", lock, re.MULTILINE)
    if found is None:
        raise ValueError(f"{package} is not in the lock file")
    return found[0]


def create(environment: Path) -> None:
    """Create the environment with pip in it, unless it exists."""
    if (environment / "bin" / "python").exists():
        return
    print(f"Creating {environment} with Python {sys.version.split()[0]}", flush=True)
    try:
        venv.create(environment, with_pip=True)
    except subprocess.CalledProcessError as error:
        # Debian ships ensurepip in a package of its own.
        shutil.rmtree(environment, ignore_errors=True)
        raise SystemExit(
            f"Python {sys.version.split()[0]} cannot create virtual environments. "
            "On Debian or Ubuntu: apt-get install python3-venv"
        ) from error


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Create a virtual environment with locked requirements.")
    parser.add_argument("environment", type=Path)
    parser.add_argument("locks", nargs="+", type=Path, help="files with pinned and hashed requirements")
    parser.add_argument("--editable", type=Path, help="a project to install from its sources")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever python3 is on a user's machine runs this script
        version = sys.version.split()[0]
        raise SystemExit(f"Strata needs Python 3.11 or newer, and this is {version}. Name another: make PYTHON=…")
    begun_s = time.monotonic()
    try:
        create(arguments.environment)
        provide_uv(arguments.environment)
        names = ", ".join(str(lock) for lock in arguments.locks)
        print(f"Installing {names} with {'uv' if find_uv(arguments.environment) else 'pip'}", flush=True)
        wanted = [word for lock in arguments.locks for word in ("-r", lock)]
        install(arguments.environment, "--no-deps", "--require-hashes", *wanted)
        if arguments.editable is not None:
            install(arguments.environment, "--no-deps", "--no-build-isolation", "--editable", arguments.editable)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"Installing failed with exit code {error.returncode}; the lines above say why.") from error
    print(f"Ready after {time.monotonic() - begun_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()

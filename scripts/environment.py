"""Create a virtual environment and install locked requirements: with uv if it can be had, else with pip.

    python3 scripts/environment.py .venv requirements/worker.txt ... create .venv if missing, and install
    python3 scripts/environment.py .venv --editable . ...            the same, and Strata from its sources

It runs on a bare Python, so it imports the standard library only. Every package is pinned with its hash, and nothing is
resolved: pip would look at the newest release of a package that is wanted with an extra, and refuse it without a hash.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "requirements"
# pip's settings that say where packages come from, and the variables with which uv does the same. Of extra indexes only
# pip gets to know: of one version, uv sees the files of a single index, and may so take a wheel without its C library.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
# pip's other settings that count here. All packages are pinned, so one that says which to install, or where to, could
# only break the installation: clusters set "user", and images with a GPU library bring a "constraint".
PIP_SETTINGS = {
    *UV_VARIABLES, "extra-index-url", "no-index", "timeout", "default-timeout", "retries", "cache-dir", "no-cache-dir",
    "keyring-provider",
}  # fmt: skip
# The same for uv, which has few of them in variables.
IGNORED_UV_VARIABLES = {"UV_CONSTRAINT", "UV_OVERRIDE", "UV_REQUIRE_HASHES"}


def install(environment: Path, *arguments: str | Path) -> None:
    """Install into an environment with uv, or with pip where uv is missing or fails."""
    if (uv := find_uv(environment)) is not None and _install_with_uv(uv, environment, *arguments):
        return
    install_with_pip(environment, *arguments)


def install_with_pip(environment: Path, *arguments: str | Path) -> None:
    """Install into an environment with pip; it prints why it cannot."""
    _run_pip(environment, "--quiet", *arguments).check_returncode()


def _run_pip(environment: Path, *arguments: str | Path, capture: bool = False) -> subprocess.CompletedProcess[bytes]:
    command = [_python(environment), "-m", "pip", "install", *arguments]
    variables = pip_variables(pip_settings(environment), os.environ)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=capture, env=variables)


def _install_with_uv(uv: str, environment: Path, *arguments: str | Path) -> bool:
    pip = pip_settings(environment)
    offline = ["--no-index"] if pip.get("no-index", "no").lower() in {"1", "true", "yes", "on"} else []
    command = [uv, "pip", "install", "--quiet", "--python", _python(environment), *offline, *arguments]
    kept = {name: value for name, value in os.environ.items() if name not in IGNORED_UV_VARIABLES}
    variables = {**kept, **uv_variables(pip, os.environ)}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables)
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1].strip()
        print(f"uv could not install them ({reason}); trying pip.", flush=True)
    return done.returncode == 0


def pip_settings(environment: Path) -> dict[str, str]:
    """Return the settings that pip would use for an installation, from its files and variables."""
    command = [_python(environment), "-m", "pip", "config", "list", "--disable-pip-version-check"]
    variables = {name: value for name, value in os.environ.items() if not _is_pips(name) or name == "PIP_CONFIG_FILE"}
    # "user", which clusters set for installations, would make this command list the files of the user alone.
    variables["PIP_USER"] = "0"
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=variables).stdout
    found = re.findall(r"^(global|install)\.([a-z-]+)=(.*)$", listed, re.MULTILINE)
    # A variable wins over the section of a command, and that over [global].
    found.sort(key=lambda setting: ("global", "install").index(setting[0]))
    files = {name: str(ast.literal_eval(value)) for _, name, value in found}
    return files | {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if _is_pips(name)
    }


def _is_pips(variable: str) -> bool:
    return variable.startswith("PIP_")


def pip_variables(pip: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which pip looks where the user's settings say, and follows none of the others."""
    others = {name: value for name, value in environ.items() if not _is_pips(name)}
    kept = {name: " ".join(value.split()) for name, value in pip.items() if name in PIP_SETTINGS and value}
    own = {"config-file": os.devnull, "disable-pip-version-check": "1"}
    return {**others, **{f"PIP_{name.upper().replace('-', '_')}": value for name, value in {**kept, **own}.items()}}


def uv_variables(pip: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make uv look where pip looks, except for those that the user has set.

    uv reads none of pip's settings: on a machine with a mirror it would wait for PyPI and leave the work to pip.
    """
    places = {UV_VARIABLES[name]: " ".join(value.split()) for name, value in pip.items() if name in UV_VARIABLES}
    if "UV_FIND_LINKS" in places:
        places["UV_FIND_LINKS"] = places["UV_FIND_LINKS"].replace(" ", ",")
    return {name: value for name, value in places.items() if value and not environ.get(name)}


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
    options = ["--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", lock]
    # If no package can be had, the installation itself will say so.
    if _run_pip(environment, *options, capture=True).returncode != 0:
        print("uv cannot be installed here; pip takes about a minute longer.", flush=True)


def pin_of(package: str, lock: str) -> str:
    """Return the entry of one package in a lock file: its version and hashes."""
    found = re.search(rf"^{re.escape(package)}==(.*\\\n)*.*\n", lock, re.MULTILINE)
    if found is None:
        raise ValueError(f"{package} is not in the lock file")
    return found[0]


def create(environment: Path) -> None:
    """Create the environment with pip in it, unless it exists; complete one whose creation was interrupted."""
    if not _python(environment).exists():
        print(f"Creating {environment} with Python {sys.version.split()[0]}", flush=True)
        # Its Python may be gone, after an upgrade of the system. A folder that is no environment is left as it is.
        venv.create(environment, clear=(environment / "pyvenv.cfg").exists())
    if (environment / "bin" / "pip").exists():
        return
    command = [_python(environment), "-m", "ensurepip", "--default-pip"]
    added = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if added.returncode != 0 and find_uv(environment) is None:
        # Debian ships ensurepip in a package of its own.
        raise SystemExit(
            f"Python {sys.version.split()[0]} cannot create virtual environments. "
            "On Debian or Ubuntu: apt-get install python3-venv"
        )


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Create a virtual environment with locked requirements.")
    parser.add_argument("environment", type=Path)
    parser.add_argument("locks", nargs="+", type=Path, help="files with pinned and hashed requirements")
    parser.add_argument("--editable", type=Path, help="a project to install from its sources")
    arguments = parser.parse_args()
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
        raise SystemExit(
            f"Installing failed with exit code {error.returncode}; the lines above say why. "
            "Where packages come from a mirror, name it: export PIP_INDEX_URL=..."
        ) from error
    except KeyboardInterrupt:
        raise SystemExit("Interrupted; the same command goes on from here.") from None
    print(f"Ready after {time.monotonic() - begun_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()

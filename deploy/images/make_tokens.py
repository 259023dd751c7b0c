"""Makes tokens of the coordinators for containers that start after this one; one that still counts is kept.

    python3 make_tokens.py ROLE=FILE…

COORDINATOR_URL, STRATA_TLS_CA and STRATA_TOKEN_FILE say where the coordinators are and who asks: an administrator.
Exits with 1 and the reason if no coordinator leads within two minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ATTEMPTS = 60
PAUSE_S = 2.0
# The group of every container may read it; no one else may.
MODE = 0o640


def main() -> int:
    """Run the command line."""
    for attempt in range(ATTEMPTS):
        asked = run("status")
        if asked.returncode == 0:
            break
        if attempt == ATTEMPTS - 1:
            sys.stderr.write(asked.stderr)
            return 1
        time.sleep(PAUSE_S)
    for word in sys.argv[1:]:
        role, _, name = word.partition("=")
        path = Path(name)
        if path.exists() and run("status", token_file=path).returncode == 0:
            sys.stdout.write(f"{path}: the token of before counts\n")
            continue
        made = run("token", "create", f"--role={role}", f"--name=compose-{role}")
        if made.returncode != 0:
            sys.stderr.write(made.stderr)
            return 1
        write(path, made.stdout)
        sys.stdout.write(f"{path}: a new token with the role {role}\n")
    return 0


def run(*words: str, token_file: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of Strata, with another token than the administrator's if one is given."""
    environment = {**os.environ, **({"STRATA_TOKEN_FILE": str(token_file)} if token_file else {})}
    return subprocess.run(["strata", *words], env=environment, capture_output=True, text=True, check=False)  # noqa: S603, S607


def write(path: Path, text: str) -> None:
    """Write the file whole: whoever reads it sees one token."""
    fresh = path.with_name(f".{path.name}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), MODE)
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())

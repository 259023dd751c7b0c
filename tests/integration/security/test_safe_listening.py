"""A coordinator that others can reach: it does not start open, says how to mend that, and what it says works."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from strata.coordinator.entry.certificates import make_certificates
from strata.errors import UnsafeListenError
from tests.testbed.network.namespaces import Host, Network, why_not
from tests.testbed.pace import stretch
from tests.testbed.process import run_program, running

COMMAND = re.compile(r"'(strata [^']+)'")
# Everyone may do everything with a file, unless whoever makes it says otherwise.
CARELESS = ["sh", "-c", 'umask 000; exec "$@"', "sh"]


@pytest.fixture
def elsewhere() -> Iterator[Host]:
    """A machine with an address of its own, that this one reaches."""
    if (problem := why_not()) is not None:
        pytest.skip(problem)
    with Network() as network:
        yield network.add("coordinator")


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    return run_program(
        command,
        cwd=folder,
        env={**outside, **environment},
        capture_output=True,
        text=True,
        timeout=stretch(60),
        check=False,
    )


def strata(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "strata", *arguments]


@contextmanager
def serving(folder: Path, host: Host, arguments: list[str]) -> Iterator[None]:
    log = folder / "coordinator.log"
    # env: the working directory is where the files are.
    command = [*host.prefix, *CARELESS, "env", f"--chdir={folder}", *strata(*arguments)]
    with running(command, log=log, is_ready=lambda: b"ready grpc=" in log.read_bytes()):
        yield


def test_the_two_commands_that_are_printed_mend_it(tmp_path: Path, elsewhere: Host) -> None:
    refused = run(tmp_path, *elsewhere.prefix, *strata("coordinator", "--listen", "0.0.0.0"))
    assert refused.returncode == 1
    assert "does not listen on 0.0.0.0 without TLS and tokens" in refused.stderr
    make, serve = (shlex.split(each)[1:] for each in COMMAND.findall(refused.stderr))
    assert make[:2] == ["tls", "init"]
    made = run(tmp_path, *CARELESS, *strata(*(elsewhere.ip if word == "NAME" else word for word in make)))
    assert made.returncode == 0, made.stderr
    assert elsewhere.ip in made.stdout
    with serving(tmp_path, elsewhere, serve):
        settings = {
            "COORDINATOR_URL": f"grpcs://{elsewhere.ip}:50051",
            "STRATA_TLS_CA": str(tmp_path / "tls" / "ca.pem"),
        }
        stranger = run(tmp_path, *strata("status"), **settings)
        assert stranger.returncode != 0
        assert "it brought no token" in stranger.stderr
        admin = run(tmp_path, *strata("status"), **settings, STRATA_TOKEN_FILE=str(tmp_path / "admin-token"))
        assert (admin.returncode, admin.stdout) == (0, "no jobs yet\n"), admin.stderr
        plain = run(tmp_path, *strata("status"), COORDINATOR_URL=f"grpc://{elsewhere.ip}:50051")
        assert plain.returncode != 0
        modes = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    public = {Path("tls") / name for name in ("ca.pem", "server.pem", "client.pem")}
    kept = {path: mode for path, mode in modes.items() if path.name != "coordinator.log"}
    assert {path for path, mode in kept.items() if mode == 0o700} == {Path("tls")}
    assert {path for path, mode in kept.items() if mode == 0o644} == public
    assert {path for path, mode in kept.items() if mode not in (0o600, 0o700, 0o644)} == set()
    private = {"strata-journal.db", "strata-journal.db-wal", "strata-journal.db-mark", "admin-token"}
    assert private | {"ca-key.pem", "server-key.pem", "client-key.pem"} <= {
        path.name for path, mode in kept.items() if mode == 0o600
    }


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (["--admin-token-file", "token"], "TLS"),
        (["--tls-cert", "tls/server.pem", "--tls-key", "tls/server-key.pem"], "tokens"),
    ],
)
def test_half_of_it_is_not_enough(tmp_path: Path, options: list[str], missing: str) -> None:
    run(tmp_path, *strata("tls", "init", "tls", "--host", "localhost"))
    refused = run(tmp_path, *strata("coordinator", "--listen", "0.0.0.0", *options))
    assert refused.returncode == 1
    assert str(UnsafeListenError("0.0.0.0", missing)) in refused.stderr


def test_who_says_insecure_is_let_do_it_with_a_warning(tmp_path: Path, elsewhere: Host) -> None:
    with serving(tmp_path, elsewhere, ["coordinator", "--listen", "0.0.0.0", "--insecure"]):
        shown = run(tmp_path, *strata("status"), COORDINATOR_URL=f"grpc://{elsewhere.ip}:50051")
        assert (shown.returncode, shown.stdout) == (0, "no jobs yet\n"), shown.stderr
    log = (tmp_path / "coordinator.log").read_text()
    assert "listening on 0.0.0.0 without TLS and tokens: let only a trusted network reach it" in log


def test_a_certificate_without_its_key_is_an_error_and_not_a_plain_port(tmp_path: Path) -> None:
    refused = run(tmp_path, *strata("coordinator", "--tls-cert", "server.pem"))
    assert refused.returncode != 0
    assert "STRATA_TLS_KEY (with STRATA_TLS_CERT): expected a path to a PEM file of a private key" in refused.stderr


@pytest.mark.parametrize("options", [[], ["--admin-token-file", "token"], ["--admin-token-file", "new/token"]])
def test_a_start_that_is_refused_leaves_nothing_behind(tmp_path: Path, options: list[str]) -> None:
    refused = run(tmp_path, *strata("coordinator", "--listen", "0.0.0.0", *options))
    assert refused.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_settings_that_are_refused_leave_no_journal_behind(tmp_path: Path) -> None:
    command = strata("coordinator", "--grpc-address", "127.0.0.1:0", "--channel-address", "127.0.0.1:0", "--no-http")
    (tmp_path / "token").write_text("too short")
    refused = run(tmp_path, *command, "--admin-token-file", "token")
    assert "it holds no token of 24 characters or more" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    rules = json.dumps([{"claim": "sub", "matches": "*", "role": "worker"}])
    issuer = {"STRATA_OIDC_ISSUER": "http://issuer.example", "STRATA_OIDC_AUDIENCE": "a", "STRATA_OIDC_RULES": rules}
    refused = run(tmp_path, *command, "--admin-token-file", "new", **issuer)
    assert "expected an https:// URL" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_journal_that_is_refused_leaves_no_new_token_behind(tmp_path: Path) -> None:
    command = strata("coordinator", "--grpc-address", "127.0.0.1:0", "--channel-address", "127.0.0.1:0", "--no-http")
    (tmp_path / "strata-journal.db").write_text("of another program")
    refused = run(tmp_path, *command, "--admin-token-file", "new")
    assert refused.returncode == 1
    assert "new" not in [path.name for path in tmp_path.iterdir()]


def test_a_key_with_a_passphrase_is_refused_and_the_terminal_is_not_asked(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", hosts=["localhost"], days=1)
    lock(files.key)
    pair = ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    # Ports of its own: nothing must be asked of the terminal before it listens.
    refused = run(tmp_path, *strata("coordinator", "--state", "memory://", *pair))
    assert refused.returncode == 1
    assert "the key has a passphrase" in refused.stderr
    assert "Enter PEM" not in refused.stderr
    client = {"STRATA_TLS_CERT": str(files.cert), "STRATA_TLS_KEY": str(files.key), "STRATA_TLS_CA": str(files.ca)}
    refused = run(tmp_path, *strata("status", "--coordinator", "grpcs://localhost:1"), **client)
    assert refused.returncode == 1
    assert refused.stderr.startswith("strata: error:"), refused.stderr
    assert "the key has a passphrase" in refused.stderr


def test_handshakes_that_fail_leave_a_log_that_can_be_read(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", hosts=["localhost"], days=1)
    command = strata("coordinator", "--grpc-address", "127.0.0.1:0", "--channel-address", "127.0.0.1:0", "--no-http")
    command += ["--state", "memory://", "--tls-cert", str(files.cert), "--tls-key", str(files.key), "--log-json"]
    log = tmp_path / "log"
    with running(command, log=log, is_ready=lambda: b"ready grpc=" in log.read_bytes()):
        ready = next(line for line in log.read_text().splitlines() if line.startswith("ready"))
        ports = [int(word.partition("=")[2]) for word in ready.split()[1:]]
        for port in ports * 5:
            untrusting = ssl.create_default_context()
            with (
                pytest.raises(ssl.SSLCertVerificationError),
                socket.create_connection(("127.0.0.1", port), timeout=stretch(10)) as plain,
            ):
                untrusting.wrap_socket(plain, server_hostname="localhost")
            with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=stretch(10)) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                plain.recv(100)
    for line in log.read_text().splitlines():
        assert line == ready or json.loads(line)["level"]


def lock(key: Path) -> None:
    """Give a private key a passphrase."""
    loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a passphrase"),
        )
    )

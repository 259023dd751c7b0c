"""strata tls init: a private authority whose certificates fit, with keys that only their owner may read."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from strata.coordinator.entry import certificates, server_tls
from strata.coordinator.entry.certificates import make_certificates
from strata.coordinator.entry.private_files import write_private
from strata.coordinator.entry.server_tls import ServerTls, TlsConfig
from strata.errors import TokenFileError


def pem(key: Any, passphrase: bytes | None = None) -> bytes:
    locked = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    encoded: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    return encoded


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", hosts=["localhost"], days=1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in files.folder.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca-key.pem", "server-key.pem", "client-key.pem"}
    assert files.folder.stat().st_mode & 0o777 == 0o700


def test_a_second_call_keeps_the_authority_and_renews_the_certificates(tmp_path: Path) -> None:
    first = make_certificates(tmp_path, hosts=["localhost"], days=1)
    ca, cert = first.ca.read_bytes(), first.cert.read_bytes()
    make_certificates(tmp_path, hosts=["localhost", "10.0.0.5", "::1"], days=1)
    assert first.ca.read_bytes() == ca
    assert first.cert.read_bytes() != cert
    found = ssl._ssl._test_decode_cert(str(first.cert))
    assert ("IP Address", "10.0.0.5") in found["subjectAltName"]


@pytest.mark.parametrize("are_peers", [False, True])
def test_only_the_certificate_of_peers_is_for_both_ends_of_a_connection(tmp_path: Path, are_peers: bool) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1, are_peers=are_peers)
    found = x509.load_pem_x509_certificate(files.cert.read_bytes()).extensions.get_extension_for_class(
        x509.ExtendedKeyUsage
    )
    assert ExtendedKeyUsageOID.SERVER_AUTH in found.value
    assert (ExtendedKeyUsageOID.CLIENT_AUTH in found.value) == are_peers


@pytest.mark.parametrize("host", ["", "a b", "host:50051", "ä.example", "x" * 300])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="--host"):
        make_certificates(tmp_path, hosts=[host], days=1)


def test_files_that_do_not_fit_together_change_nothing(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    tls = ServerTls(TlsConfig(cert=files.cert, key=files.key))
    before = tls._newest()
    # A certificate whose key is not there yet.
    files.cert.write_bytes(files.client_cert.read_bytes())
    assert tls._newest() == before
    files.key.write_bytes(files.client_key.read_bytes())
    assert tls._newest() != before


def test_a_coordinator_does_not_start_with_files_that_do_not_fit(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    with pytest.raises(TokenFileError, match=r"server\.pem"):
        ServerTls(TlsConfig(cert=files.cert, key=files.client_key))


@pytest.mark.parametrize("missing", ["ca.pem", "ca-key.pem"])
def test_an_authority_is_never_replaced_because_half_of_it_is_elsewhere(tmp_path: Path, missing: str) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    (tmp_path / missing).unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TokenFileError, match=f"{missing} cannot be used: it is not there, but"):
        make_certificates(tmp_path, hosts=["localhost"], days=1)
    assert {path: path.read_bytes() for path in files.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ca.pem", b"junk", "no certificate in PEM"),
        ("ca-key.pem", b"junk", "no private key in PEM"),
        ("ca-key.pem", pem(ec.generate_private_key(ec.SECP256R1())), "not the key of"),
        ("ca-key.pem", pem(rsa.generate_private_key(65_537, 2_048)), "no key that 'strata tls init' made"),
        ("ca-key.pem", pem(ec.generate_private_key(ec.SECP256R1()), b"secret"), "passphrase"),
    ],
    ids=["no certificate", "no key", "another key", "a key of another kind", "a key with a passphrase"],
)
def test_an_authority_that_cannot_sign_is_named_and_makes_nothing(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    before = files.cert.read_bytes()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenFileError, match=words):
        make_certificates(tmp_path, hosts=["localhost"], days=1)
    assert files.cert.read_bytes() == before


def test_an_authority_that_has_ended_signs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 0)
    with pytest.raises(TokenFileError, match="it ended on"):
        make_certificates(tmp_path, hosts=["localhost"], days=1)


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("")
    with pytest.raises(TokenFileError, match="tls cannot be used: File exists"):
        make_certificates(tmp_path / "tls", hosts=["localhost"], days=1)


def test_files_that_are_gone_are_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    tls = ServerTls(TlsConfig(cert=files.cert, key=files.key))
    content = files.key.read_bytes()
    for _ in range(2):
        files.key.unlink()
        for _ in range(5):
            tls._newest()
        files.key.write_bytes(content)
        tls._newest()
    assert len([each for each in caplog.records if "the previous certificate stays in use" in each.message]) == 2


def test_what_a_killed_process_of_the_same_number_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / f".token.{os.getpid()}").write_bytes(b"half")
    write_private(tmp_path / "token", b"whole")
    assert (tmp_path / "token").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_private_file_that_cannot_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "key.pem").mkdir()
    with pytest.raises(IsADirectoryError):
        write_private(tmp_path / "key.pem", b"secret")
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]
    assert list((tmp_path / "key.pem").iterdir()) == []


def test_files_that_change_while_they_are_read_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    tls = ServerTls(TlsConfig(cert=files.cert, key=files.key))
    before = tls._newest()
    load = server_tls._new_context

    def load_and_renew(config: TlsConfig) -> ssl.SSLContext:
        context = load(config)
        os.utime(files.cert, ns=(1, 1))
        return context

    make_certificates(tmp_path, hosts=["localhost"], days=2)
    with monkeypatch.context() as patch:
        patch.setattr(server_tls, "_new_context", load_and_renew)
        assert tls._newest() == before
    assert "the previous certificate stays in use" in caplog.text
    assert "it changes while it is read" in caplog.text
    # By the next handshake nothing changes any more.
    assert tls._newest() != before


def test_grpc_is_offered_the_certificate_that_is_in_the_files_at_each_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path, hosts=["localhost"], days=1)
    tls = ServerTls(TlsConfig(cert=files.cert, key=files.key))
    given: list[Any] = []
    monkeypatch.setattr("grpc.dynamic_ssl_server_credentials", lambda *arguments, **_: given.extend(arguments))
    tls.grpc_credentials()
    first, fetch = given
    # gRPC asks in a thread of its own, before each handshake.
    assert fetch() is first
    make_certificates(tmp_path, hosts=["localhost"], days=2)
    second = fetch()
    assert second is not first
    assert fetch() is second

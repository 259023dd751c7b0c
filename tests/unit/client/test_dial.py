"""What a client proves itself with: the token is fresh, never shown, and never sent where others can read it."""

from __future__ import annotations

import logging
import pickle
import select
import socket
import ssl
import struct
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from strata.address import parse_endpoints
from strata.client.credentials import MAX_TOKEN_BYTES, Credentials
from strata.client.dial import NO_CERTIFICATE, Dial, describe_tls_error
from strata.client.name_records import find_records
from strata.client.transport import ChannelTransport, TransportLostError
from strata.config import load_settings
from strata.coordinator.entry.certificates import make_certificates
from strata.errors import ConfigError, StrataError, TokenFileError, UnsafeTokenError
from tests.testbed.network.one_connection import one_connection
from tests.testbed.pace import stretch

SECRET = "strata_abc_0123456789abcdef"


def dial(url: str, **fields: object) -> Dial:
    return Dial(parse_endpoints(url), Credentials(**fields))


def test_a_token_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    here = dial("127.0.0.1", token_file=file)
    assert here.headers("127.0.0.1:1") == {"authorization": "Bearer first"}
    file.write_text("second\n")
    assert here.headers("127.0.0.1:1") == {"authorization": "Bearer second"}


def test_without_a_token_none_is_sent() -> None:
    assert Credentials().token() is None
    assert dial("127.0.0.1").headers("127.0.0.1:1") == {}


def test_a_token_file_that_is_missing_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError) as caught:
        dial("127.0.0.1", token_file=tmp_path / "token").headers("127.0.0.1:1")
    assert str(caught.value) == f"{tmp_path / 'token'} cannot be used: No such file or directory"


def test_a_token_is_not_sent_in_the_clear_to_another_machine() -> None:
    with pytest.raises(UnsafeTokenError) as caught:
        dial("grpc://10.0.0.5", secret=SecretStr(SECRET)).headers("10.0.0.5:50051")
    assert SECRET not in str(caught.value)
    assert dial("grpcs://10.0.0.5", secret=SecretStr(SECRET)).headers("10.0.0.5:50051")
    assert dial("grpc://10.0.0.5", secret=SecretStr(SECRET), is_insecure=True).headers("10.0.0.5:50051")
    assert dial("grpc://10.0.0.5").headers("10.0.0.5:50051") == {}


async def test_a_channel_without_tls_is_refused_where_tls_was_asked_for() -> None:
    with pytest.raises(TransportLostError, match="without TLS"):
        await ChannelTransport.connect("ws://127.0.0.1:1", dial("grpcs://127.0.0.1"))


@given(token=st.text(max_size=40) | st.just("x" * (MAX_TOKEN_BYTES + 1)) | st.sampled_from(["a\r\nb", "a\0b", "ä", ""]))
def test_what_cannot_be_a_header_is_refused_and_not_repeated(token: str) -> None:
    credentials = Credentials(secret=SecretStr(token))
    if 1 <= len(token) <= MAX_TOKEN_BYTES and all("!" <= each <= "~" for each in token):
        assert credentials.token() == token
        return
    with pytest.raises(TokenFileError) as caught:
        credentials.token()
    assert str(caught.value) == str(TokenFileError("STRATA_TOKEN", caught.value.problem))


def test_a_token_is_in_no_repr_setting_or_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATA_TOKEN", SECRET)
    settings = load_settings()
    here = Dial.to("10.0.0.5")
    shown = [repr(settings), str(settings), settings.model_dump_json(), repr(here), str(here)]
    try:
        here.headers("10.0.0.5:1")
    except StrataError:
        shown.append(traceback.format_exc())
    shown.append(logging.Formatter().format(logging.makeLogRecord({"msg": "%s", "args": (here,)})))
    assert not [each for each in shown if SECRET in each]
    assert len(shown) == 7
    assert SECRET.encode() not in pickle.dumps(repr(here))


def test_a_certificate_without_its_key_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_TLS_CERT", "server.pem")
    with pytest.raises(ConfigError, match="STRATA_TLS_KEY"):
        load_settings()


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(TokenFileError, match=r"ca\.pem"):
        Credentials(ca=tmp_path / "ca.pem").ssl_context()
    with pytest.raises(TokenFileError, match=r"missing\.pem"):
        Credentials(ca=tmp_path / "missing.pem").grpc_credentials()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("another key", "the key is of another certificate"),
        ("no PEM", "it holds no certificate or key in PEM"),
        ("another kind of key", "the key is of another certificate"),
        ("weak key", "ee key too small"),
        ("missing", "No such file or directory"),
    ],
)
def test_a_certificate_that_cannot_be_used_says_why(tmp_path: Path, fault: str, words: str) -> None:
    files = make_certificates(tmp_path, hosts=["127.0.0.1"], days=1)
    key = files.key if fault == "another key" else files.client_key
    if fault == "no PEM":
        files.client_cert.write_text("no certificate")
    elif fault == "another kind of key":
        key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    elif fault == "weak key":
        sign_weakly(files.client_cert, key)
    elif fault == "missing":
        files.client_cert.unlink()
    with pytest.raises(TokenFileError) as caught:
        Credentials(ca=files.ca, cert=files.client_cert, key=key).ssl_context()
    assert str(caught.value) == f"{files.client_cert} with {key} cannot be used: {words}"


def sign_weakly(cert: Path, key: Path) -> None:
    """Write a certificate whose key is shorter than TLS allows."""
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weak")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, weak.public_key(), x509.random_serial_number(), now, now)
    cert.write_bytes(builder.sign(weak, SHA256()).public_bytes(Encoding.PEM))
    key.write_bytes(weak.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def reset(connection: socket.socket) -> None:
    select.select([connection], [], [], stretch(10))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.mark.parametrize(("answer", "problem"), [(reset, NO_CERTIFICATE), (stay_silent, "timed out")])
def test_a_port_that_breaks_off_the_handshake_is_told_from_one_that_does_not_answer_it(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None], problem: str
) -> None:
    if answer is stay_silent:
        monkeypatch.setattr("strata.client.dial.PROBE_TIMEOUT_S", 0.05)
    with one_connection(answer) as address:
        error = dial(f"grpcs://{address}").find_tls_problem(address, name=address)
    assert error is not None
    assert error.address == address
    assert problem in error.problem


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ssl_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), f"{NO_CERTIFICATE} (tlsv13 alert certificate required)"),
        (ssl_error("TLSV1_ALERT_UNKNOWN_CA"), f"{NO_CERTIFICATE} (tlsv1 alert unknown ca)"),
        (ssl_error("WRONG_VERSION_NUMBER"), "it does not speak TLS there"),
        (ssl_error("UNEXPECTED_EOF_WHILE_READING"), "unexpected eof while reading"),
        (TimeoutError("the handshake operation timed out"), "the handshake operation timed out"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=str,
)
def test_an_error_of_tls_is_said_in_words(error: OSError, words: str) -> None:
    assert describe_tls_error(error) == words


def test_a_name_that_is_not_known_now_has_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert find_records("coordinator.example:50051") == ()


def test_a_user_without_a_home_has_no_local_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.client.local_tokens.FOLDER", Path("~nobody-of-this-name/tokens"))
    assert dial("127.0.0.1").headers("127.0.0.1:50051") == {}

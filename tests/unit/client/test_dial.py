"""What a client proves itself with: the token is fresh, never shown, and never sent where others can read it."""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from strata.address import parse_endpoints
from strata.client.credentials import MAX_TOKEN_BYTES, Credentials
from strata.client.dial import Dial
from strata.client.transport import ChannelTransport, TransportLostError
from strata.config import load_settings
from strata.errors import ConfigError, StrataError, TokenFileError, UnsafeTokenError

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


def test_a_user_without_a_home_has_no_local_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.client.local_tokens.FOLDER", Path("~nobody-of-this-name/tokens"))
    assert dial("127.0.0.1").headers("127.0.0.1:50051") == {}

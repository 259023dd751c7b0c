"""The address of a coordinator: every way to write it, with and without TLS, one or several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.address import (
    Endpoints,
    is_loopback,
    join_address,
    parse_address,
    parse_endpoints,
    parse_host,
    reachable,
    split_address,
)


@pytest.mark.parametrize(
    ("url", "address", "is_secure"),
    [
        ("host", "host:50051", False),
        ("host:1", "host:1", False),
        ("http://host:1/", "host:1", False),
        ("grpc://[::1]:1", "[::1]:1", False),
        ("strata://HOST", "host:50051", False),
        ("https://host:1", "host:1", True),
        ("grpcs://host", "host:50051", True),
        ("STRATAS://[fe80::1]", "[fe80::1]:50051", True),
    ],
)
def test_a_scheme_says_whether_tls_is_used(url: str, address: str, is_secure: bool) -> None:
    assert parse_endpoints(url) == Endpoints((address,), is_secure)
    assert parse_address(url) == address


def test_several_addresses_keep_their_order_and_lose_their_copies() -> None:
    endpoints = parse_endpoints("stratas://a,b:2,a:50051,[::1]:3")
    assert endpoints == Endpoints(("a:50051", "b:2", "[::1]:3"), is_secure=True)
    assert parse_endpoints(str(endpoints)) == endpoints


def test_where_one_address_is_wanted_several_are_refused() -> None:
    with pytest.raises(ValueError, match="several addresses"):
        parse_address("strata://a,b")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host",
        "ws://host",
        "host:0",
        "host:99999",
        "host:x",
        "a,,b",
        "strata://",
        "http://host/path",
        "[::1",
        "host?a=1",
        "host#a",
        ",".join(f"h{n}" for n in range(17)),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="coordinator"):
        parse_endpoints(url)


@given(secret=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8))
def test_a_secret_in_a_url_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="no user or token") as caught:
        parse_endpoints(f"https://user:{secret}@host")
    assert secret not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_this_machine_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "127.0.0.1.evil.example", "localhost.evil.example", ""])
def test_no_other_machine_passes_for_this_one(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("told", "address", "reached"),
    [
        ("ws://0.0.0.0:50052", "10.0.0.5:50051", "ws://10.0.0.5:50052"),
        ("ws://127.0.0.1:50052/", "10.0.0.5:50051", "ws://10.0.0.5:50052/"),
        ("ws://127.0.0.1:50052", "localhost:50051", "ws://127.0.0.1:50052"),
        ("wss://strata.example:50052/a/b", "10.0.0.5:50051", "wss://strata.example:50052/a/b"),
        ("http://[::]:8080", "[fd00::1]:50051", "http://[fd00::1]:8080"),
    ],
)
def test_a_url_that_a_coordinator_tells_is_reached_where_the_coordinator_is(
    told: str, address: str, reached: str
) -> None:
    assert reachable(told, address) == reached


@pytest.mark.parametrize("told", ["", "ws://host", "host", "ws://host:99999"])
def test_a_url_without_host_and_port_is_refused(told: str) -> None:
    with pytest.raises(ValueError, match="use host:port"):
        reachable(told, "10.0.0.5:50051")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("host:1", "host", 1),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:50051", "::1", 50_051),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65_535),
        ("strata_coordinator.ml.svc:8080", "strata_coordinator.ml.svc", 8_080),
    ],
)
def test_an_address_is_split_and_joined(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("::1:50051", r"an IPv6 address needs brackets, such as \[::1\]:50051"),
        ("fd00::5:8080", r"an IPv6 address needs brackets, such as \[fd00::5\]:8080"),
        ("::1", r"an IPv6 address needs brackets, such as \[::1\]:50051"),
        ("fe80::1%eth0:50051", r"such as \[fe80::1%eth0\]:50051"),
        ("[::1]", "use host:port"),
        ("[::1%/x]:1", "use host:port"),
        ("[host]:1", "use host:port"),
        ("[127.0.0.1]:1", "use host:port"),
        ("[[::1]]:1", "use host:port"),
        ("[::1:1", "use host:port"),
        ("::1]:1", "use host:port"),
        ("http://host:1", "use host:port"),
        ("a:1,b:2", "use host:port"),
        ("user@host:1", "use host:port"),
        ("ho st:1", "use host:port"),
        ("host:\u0663", "use host:port"),
        ("host: 1", "use host:port"),
        ("host:1\n", "use host:port"),
        ("host:65536", "use host:port"),
        ("host:", "use host:port"),
        (":1", "use host:port"),
        ("", "use host:port"),
    ],
)
def test_an_address_that_could_mean_two_is_refused_with_the_right_form(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split_address(address)


@pytest.mark.parametrize("url", ["grpc://::1:50051", "::1", "stratas://a,fd00::5:1"])
def test_a_url_with_an_ipv6_address_without_brackets_says_so(url: str) -> None:
    with pytest.raises(ValueError, match=r"coordinator .* an IPv6 address needs brackets"):
        parse_endpoints(url)


@given(address=st.text(st.sampled_from("ab1:[]./%@ ,"), max_size=12))
def test_whatever_is_taken_for_an_address_is_written_in_one_way(address: str) -> None:
    try:
        host, port = split_address(address)
    except ValueError:
        return
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("text", "host"), [("0.0.0.0", "0.0.0.0"), ("::", "::"), ("[::1]", "::1"), ("node-1.example", "node-1.example")]
)
def test_a_host_is_taken_with_brackets_and_without(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["", "127.0.0.1:50051", "[::1]:50051", "host:1", "[host]", "http://host", "a,b"])
def test_a_host_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"use a name or an address without a port, such as 0\.0\.0\.0 or ::1"):
        parse_host(text)

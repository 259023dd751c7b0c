"""Errors of authentication: TLS, tokens and roles. None of them ever contains a token."""

from __future__ import annotations

from strata.errors.base import Recovery, with_fields
from strata.errors.tenants import AccessError


@with_fields
class UnauthenticatedError(AccessError):
    """The coordinator could not authenticate the caller."""

    problem: str

    template = (
        "the coordinator refuses this client: {problem}. Set STRATA_TOKEN or STRATA_TOKEN_FILE; "
        "an administrator creates a token with 'strata token create'"
    )


@with_fields
class UntrustedCoordinatorError(AccessError):
    """TLS with the coordinator failed: its certificate could not be verified."""

    address: str
    problem: str

    recovery = Recovery.RETRY
    template = (
        "no TLS connection to the coordinator at {address}: {problem}. Check that the address uses the name in its "
        "certificate, and that STRATA_TLS_CA is the authority that signed it"
    )


@with_fields
class UnsafeTokenError(AccessError):
    """The token would have been sent over a network without encryption; it was not sent."""

    address: str

    template = (
        "the token is not sent to {address} without TLS; use grpcs://{address}, or set STRATA_INSECURE=true where "
        "something else encrypts the connection"
    )


@with_fields
class UnsafeListenError(AccessError):
    """The coordinator would have accepted anyone from other machines; it was not started."""

    host: str
    missing: str

    template = (
        "the coordinator does not listen on {host} without {missing}. Create a certificate and an admin token: "
        "'strata tls init tls --host NAME' and 'strata coordinator --listen {host} --tls-cert tls/server.pem "
        "--tls-key tls/server-key.pem --admin-token-file admin-token'. On a network that only you can reach: --insecure"
    )


@with_fields
class TokenFileError(AccessError):
    """A file that should hold a token, a certificate or a key cannot be used."""

    path: str
    problem: str

    template = "{path} cannot be used: {problem}"

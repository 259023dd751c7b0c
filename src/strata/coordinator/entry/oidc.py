"""Tokens of an OIDC issuer: its signature, issuer, audience and times are checked, and its claims give a role.

Kubernetes' projected service-account tokens are such tokens, so pods need no secret of Strata's.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import jwt

from strata.address import is_loopback
from strata.cluster.access import DEFAULT_TENANT, Principal, Role
from strata.config import OidcRule, OidcSettings
from strata.coordinator.entry.gate import IssuedToken, UnknownKeyError
from strata.errors import ConfigError, ConfigProblem, InvalidIdError, UnauthenticatedError

log = logging.getLogger(__name__)

# Signatures only: with a symmetric one the coordinator would have to hold the issuer's secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_S = 30.0
TIMEOUT_S = 5.0
# An unknown key may be a new one, so the keys are asked for again; but not more often than this.
MIN_REFRESH_S = 5.0
MAX_ANSWER_BYTES = 1 << 20
MAX_NAME = 128
# What comes of an issuer that is not there, or whose answer is no HTTP, no JSON, nested without end or of another form.
_UNUSABLE = (OSError, HTTPException, ValueError, RecursionError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class _Key:
    jwk: jwt.PyJWK
    fingerprint: str


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect after each URL was checked."""

    def __init__(self, check: Callable[[str], None]) -> None:
        self._check = check

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        self._check(arguments[-1])
        return super().redirect_request(*arguments)


class OidcIssuer:
    """One issuer and the rules by which its tokens get in. :meth:`check` never waits; :meth:`refresh` does.

    It has a thread of its own: whoever brings a token with an unknown key could otherwise have all threads of the
    coordinator wait for an issuer that does not answer, and the journal with them.
    """

    def __init__(self, settings: OidcSettings, *, is_insecure: bool = False) -> None:
        self._settings = settings
        self._keys: dict[str, _Key] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "strata-oidc")
        self._asking: Future[None] | None = None
        self._refreshed_s = float("-inf")
        self._is_insecure = is_insecure
        if not self._is_safe(settings.jwks_url or settings.issuer):
            expected = "an https:// URL: whoever changes its answers on the way could sign any token"
            raise ConfigError([ConfigProblem("STRATA_OIDC_ISSUER", "settings", settings.issuer, expected)])

    def _is_safe(self, url: str) -> bool:
        """Whether nobody on the way could change what is answered there."""
        where = urlsplit(url)
        is_near = self._is_insecure or is_loopback(where.hostname or "")
        return where.scheme == "https" or (where.scheme == "http" and is_near)

    def check(self, token: str) -> IssuedToken:
        """Return whose token it is and for how long, or raise UnauthenticatedError, or UnknownKeyError."""
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise UnauthenticatedError("its token is not signed with a key of its issuer")
            key = self._find_key(str(header.get("kid", "")))
            claims: dict[str, Any] = jwt.decode(
                token,
                key.jwk,
                algorithms=[algorithm],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"], "strict_aud": False},
            )
            # A number that is no time overflows here.
            ends_s = float(claims["exp"])
        except jwt.PyJWTError as error:
            raise UnauthenticatedError(f"its issuer's token is refused: {_describe(error)}") from None
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise UnauthenticatedError("its token cannot be read") from None
        return IssuedToken(self._admit(claims), ends_s, key.fingerprint)

    def lists(self, fingerprint: str) -> bool:
        """Whether the issuer named this key when it was asked last."""
        return any(key.fingerprint == fingerprint for key in self._keys.values())

    def ask_for_keys(self) -> Future[None]:
        """Begin to ask the issuer for its keys, or return what is under way: all who wait for it share one question."""
        with self._lock:
            if self._asking is None or self._asking.done():
                self._asking = self._thread.submit(self.refresh)
            return self._asking

    def refresh(self) -> None:
        """Ask the issuer for its keys; blocks, and keeps the keys before if it does not answer."""
        if time.monotonic() - self._refreshed_s < MIN_REFRESH_S:
            return
        self._refreshed_s = time.monotonic()
        try:
            url = self._settings.jwks_url
            if url is None:
                found = self._get(f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration")
                if found.get("issuer") != self._settings.issuer:
                    raise ValueError(f"it calls itself {found.get('issuer')!r}")
                url = str(found["jwks_uri"])
            keys = self._usable(self._get(url)["keys"])
            if not keys:
                # It could sign nothing, so this is a fault of its answer; to believe it would lock everybody out.
                raise ValueError("it names no key that can be used")
        except _UNUSABLE as error:
            log.warning("the keys of issuer %s cannot be fetched: %s", self._settings.issuer, error)
            return
        if gone := self._keys.keys() - keys.keys():
            names = ", ".join(repr(kid[:40]) for kid in sorted(gone))
            log.info("issuer %s no longer names %s: tokens signed with it are refused", self._settings.issuer, names)
        self._keys = keys

    def _usable(self, listed: list[Any]) -> dict[str, _Key]:
        """Return those of the issuer's keys that tokens may be signed with; one of a new kind spoils no other."""
        keys = {}
        for each in listed:
            if each.get("use", "sig") == "sig" and each.get("kty") in ("RSA", "EC", "OKP"):
                kid = str(each.get("kid", ""))
                try:
                    keys[kid] = _Key(jwt.PyJWK(each), _fingerprint(each))
                except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
                    log.info("key %.40r of issuer %s is not usable: %s", kid, self._settings.issuer, error)
        return keys

    def _find_key(self, kid: str) -> _Key:
        key = self._keys.get(kid)
        if key is None:
            raise UnknownKeyError
        return key

    def _get(self, url: str) -> Any:
        self._refuse_unsafe(url)
        request = urllib.request.Request(url)  # noqa: S310 - http and https
        if self._settings.token_file is not None:
            token = self._settings.token_file.read_text().strip()
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=self._settings.ca)
        opener = urllib.request.build_opener(
            _Redirects(self._refuse_unsafe), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return json.loads(response.read(MAX_ANSWER_BYTES))

    def _refuse_unsafe(self, url: str) -> None:
        """Raise ValueError for a URL that the issuer names and that must not be asked."""
        if not self._is_safe(url):
            raise ValueError(f"{url!r} is no https:// URL")

    def _admit(self, claims: dict[str, Any]) -> Principal:
        for rule in self._settings.rules:
            if any(fnmatchcase(value, rule.matches) for value in _values(claims, rule.claim)):
                name = str(claims["sub"])[:MAX_NAME]
                return Principal(name, self._tenant(rule, claims), Role(rule.role), rule.jobs)
        raise UnauthenticatedError("no rule of strata_oidc_rules lets its issuer's token in")

    def _tenant(self, rule: OidcRule, claims: dict[str, Any]) -> str:
        if rule.tenant_claim is None:
            return rule.tenant or DEFAULT_TENANT
        values = _values(claims, rule.tenant_claim)
        try:
            # A claim that could name another tenant's jobs, or be of another kind than a name, is none.
            return InvalidIdError.check("tenant", values[0] if len(values) == 1 else "")
        except InvalidIdError:
            raise UnauthenticatedError(f"claim {rule.tenant_claim} of its token is no tenant's name") from None


def _fingerprint(listed: dict[str, Any]) -> str:
    """Return what tells a key from all others, also from another one that was given its name."""
    public = {name: listed.get(name) for name in ("kid", "kty", "crv", "n", "e", "x", "y")}
    return sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def _values(claims: dict[str, Any], path: str) -> list[str]:
    """Return the texts at a path of claims, such as kubernetes.io/namespace; a list has several."""
    found: Any = claims
    for name in path.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    several = found if isinstance(found, list) else [found]
    return [each for each in several if isinstance(each, str)]


def _describe(error: jwt.PyJWTError) -> str:
    """Say what is wrong in words of our own: the library's may repeat what it was given."""
    words = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.ImmatureSignatureError: "it is not valid yet",
        jwt.InvalidAudienceError: "it is for another audience",
        jwt.InvalidIssuerError: "it is of another issuer",
        jwt.InvalidSignatureError: "its signature is wrong",
        jwt.MissingRequiredClaimError: "it lacks a claim that is required",
    }
    return next((text for kind, text in words.items() if isinstance(error, kind)), "it cannot be read")

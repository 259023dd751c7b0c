"""Tokens: ``strata_<id>_<secret>``. The coordinator knows the id and the hash of the secret, and no secret."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

PREFIX = "strata"
ID_BYTES = 6
SECRET_BYTES = 32
# Longer ones are not looked at: an issuer's have a few kilobytes.
MAX_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made: :attr:`text` is for its owner, all else for the journal."""

    token_id: str
    sha256: str
    text: str = field(repr=False)


def make_token() -> NewToken:
    """Make a token of 256 random bits, which nobody can guess however fast the hash is."""
    token_id, secret = secrets.token_hex(ID_BYTES), secrets.token_hex(SECRET_BYTES)
    return NewToken(token_id, hash_secret(secret), f"{PREFIX}_{token_id}_{secret}")


def split_token(text: str) -> tuple[str, str] | None:
    """Return id and secret of a token; None if it is none of Strata's."""
    prefix, _, rest = text.partition("_")
    token_id, separator, secret = rest.partition("_")
    if prefix != PREFIX or not separator or not token_id or not secret:
        return None
    return token_id, secret


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_secret(secret: str, sha256: str) -> bool:
    """Whether a secret has this hash; it takes as long for a near miss as for a wild guess."""
    return hmac.compare_digest(hash_secret(secret), sha256)

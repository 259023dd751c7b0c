"""Where a coordinator may listen: beyond this machine only with TLS and tokens, or if someone says so."""

from __future__ import annotations

import logging

from strata.errors import UnsafeListenError

log = logging.getLogger(__name__)


def check_listening(host: str, *, has_tls: bool, is_open: bool, is_insecure: bool) -> None:
    """Raise UnsafeListenError for a host that others reach unless they must prove who they are, unheard by others.

    ``is_open`` says that nobody is asked for a token.
    """
    missing = " and ".join([*([] if has_tls else ["TLS"]), *(["tokens"] if is_open else [])])
    if not missing:
        return
    if not is_insecure:
        raise UnsafeListenError(host, missing)
    log.warning("listening on %s without %s: let only a trusted network reach it", host, missing)

"""S3Storage: Amazon S3, and every server that speaks its protocol."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from strata.errors import MissingExtraError
from strata.storage.profile import find_profile, fixed_credentials
from strata.storage.retry import RetryPolicy, is_http

try:
    from obstore.store import S3Store

    from strata.storage.object import CONCURRENCY, PART_BYTES, ObjectStorage
except ModuleNotFoundError as error:
    raise MissingExtraError("s3", needed_for="S3Storage") from error


class S3Storage(ObjectStorage):
    """Objects in an S3 bucket, below ``prefix``.

    Credentials: the arguments, else the environment (AWS_ACCESS_KEY_ID, ...), else the profile (``profile``,
    AWS_PROFILE or "default"), else the role of the pod, container or machine. With an ``endpoint`` the bucket
    is part of the path, as most servers other than Amazon's expect; ``virtual_hosted`` says otherwise.
    """

    def __init__(
        self,
        bucket: str,
        region: str | None = None,
        endpoint: str | None = None,
        prefix: str = "",
        *,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        profile: str | None = None,
        virtual_hosted: bool | None = None,
        retry: RetryPolicy | None = None,
        part_bytes: int = PART_BYTES,
        concurrency: int = CONCURRENCY,
        allow_unsafe: bool = False,
    ) -> None:
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config: dict[str, Any] = {
            "virtual_hosted_style_request": endpoint is None if virtual_hosted is None else virtual_hosted
        }
        if endpoint is not None:
            config["endpoint"] = endpoint
        if access_key_id is not None and secret_access_key is not None:
            config["credential_provider"] = fixed_credentials(access_key_id, secret_access_key, session_token)
        elif access_key_id is not None or secret_access_key is not None:
            raise ValueError("access_key_id and secret_access_key go together; only one was given")
        elif (found := find_profile(profile)) is not None:
            config["credential_provider"] = found.provider
            region = region or found.region
        if region is not None:
            config["region"] = region

        super().__init__(
            partial(S3Store, bucket, **config),
            allow_http=is_http(endpoint),
            backend=f"s3://{bucket}",
            prefix=prefix,
            retry=retry,
            part_bytes=part_bytes,
            concurrency=concurrency,
            allow_unsafe=allow_unsafe,
        )

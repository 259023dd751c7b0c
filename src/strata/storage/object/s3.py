"""S3Storage: Amazon S3, and every server that speaks its protocol."""

from __future__ import annotations

import os
from functools import partial
from typing import Unpack

from strata.errors import MissingExtraError
from strata.storage.object.aws_profile import find_profile, fixed_credentials

try:
    from obstore.store import S3Store

    from strata.storage.object.object_storage import ObjectStorage, Transfer
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
        **transfer: Unpack[Transfer],
    ) -> None:
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        provider = None
        if access_key_id is not None and secret_access_key is not None:
            provider = fixed_credentials(access_key_id, secret_access_key, session_token)
        elif access_key_id is not None or secret_access_key is not None:
            raise ValueError("access_key_id and secret_access_key go together; only one was given")
        elif (found := find_profile(profile)) is not None:
            provider, region = found.provider, region or found.region
        config = {
            "region": region,
            "endpoint": endpoint,
            "virtual_hosted_style_request": endpoint is None if virtual_hosted is None else virtual_hosted,
            "credential_provider": provider,
        }
        super().__init__(
            partial(S3Store, bucket),
            config,
            backend=f"s3://{bucket}",
            endpoint=endpoint,
            prefix=prefix,
            **transfer,
        )

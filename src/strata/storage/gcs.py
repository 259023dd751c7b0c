"""GCSStorage: Google Cloud Storage."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from strata.errors import MissingExtraError
from strata.storage.retry import RetryPolicy, is_http

try:
    from obstore.store import GCSStore

    from strata.storage.object import CONCURRENCY, PART_BYTES, ObjectStorage
except ModuleNotFoundError as error:
    raise MissingExtraError("gcs", needed_for="GCSStorage") from error


class GCSStorage(ObjectStorage):
    """Objects in a bucket of Google Cloud Storage, below ``prefix``.

    Credentials: ``service_account`` (the path of a key file) or ``access_token``, else the environment
    (GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT), else what gcloud stored, else the role of the
    pod or machine.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        service_account: str | None = None,
        access_token: str | None = None,
        retry: RetryPolicy | None = None,
        part_bytes: int = PART_BYTES,
        concurrency: int = CONCURRENCY,
        allow_unsafe: bool = False,
    ) -> None:
        endpoint = endpoint or os.environ.get("GOOGLE_BASE_URL")
        config: dict[str, Any] = {}
        if endpoint is not None:
            config["base_url"] = endpoint
        if service_account is not None:
            config["service_account"] = service_account
        if access_token is not None:
            config["bearer_token"] = access_token

        super().__init__(
            partial(GCSStore, bucket, **config),
            allow_http=is_http(endpoint),
            backend=f"gs://{bucket}",
            prefix=prefix,
            retry=retry,
            part_bytes=part_bytes,
            concurrency=concurrency,
            allow_unsafe=allow_unsafe,
        )

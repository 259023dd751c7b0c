"""GCSStorage: Google Cloud Storage."""

from __future__ import annotations

import os
from functools import partial
from typing import Unpack

from strata.errors import MissingExtraError

try:
    from obstore.store import GCSStore

    from strata.storage.object.object_storage import ObjectStorage, Transfer
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
        **transfer: Unpack[Transfer],
    ) -> None:
        endpoint = endpoint or os.environ.get("GOOGLE_BASE_URL")
        super().__init__(
            partial(GCSStore, bucket),
            {"base_url": endpoint, "service_account": service_account, "bearer_token": access_token},
            backend=f"gs://{bucket}",
            endpoint=endpoint,
            prefix=prefix,
            **transfer,
        )

"""AzureStorage: Azure Blob Storage."""

from __future__ import annotations

import os
from functools import partial
from typing import Unpack

from strata.errors import MissingExtraError

try:
    from obstore.store import AzureStore

    from strata.storage.object.object_storage import ObjectStorage, Transfer
except ModuleNotFoundError as error:
    raise MissingExtraError("azure", needed_for="AzureStorage") from error

# What Put Blob takes in one request, and how many blocks a blob may have.
MAX_SINGLE_PUT_BYTES = 5000 << 20
MAX_PARTS = 50_000


class AzureStorage(ObjectStorage):
    """Objects in a container of Azure Blob Storage, below ``prefix``.

    Credentials: the arguments, else the environment (AZURE_STORAGE_ACCOUNT_NAME with
    AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or a client secret), else the identity of the pod or
    machine. ``endpoint`` is the whole address of the account, for an emulator or a private cloud.
    """

    def __init__(
        self,
        container: str,
        prefix: str = "",
        *,
        account: str | None = None,
        account_key: str | None = None,
        sas_token: str | None = None,
        endpoint: str | None = None,
        **transfer: Unpack[Transfer],
    ) -> None:
        endpoint = endpoint or os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
        super().__init__(
            partial(AzureStore, container),
            {"account_name": account, "account_key": account_key, "sas_key": sas_token, "endpoint": endpoint},
            backend=f"az://{container}",
            endpoint=endpoint,
            prefix=prefix,
            max_single_put_bytes=MAX_SINGLE_PUT_BYTES,
            max_parts=MAX_PARTS,
            **transfer,
        )

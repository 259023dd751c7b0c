"""Datasets of the Hugging Face hub: ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``, at one commit, by ranges."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from strata.data.files.patterns import is_selected, split_pattern
from strata.data.files.remote import Fetches, RemoteFile
from strata.data.files.source import FileInfo, is_hidden, key_of
from strata.data.files.web import WebReader
from strata.errors import DatasetNotFoundError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.cache import Cache

SCHEME = "hf://"


class HubSource:
    """The files of a dataset repository at the commit that its revision stands for now."""

    def __init__(self, repository: str, revision: str | None, prefix: str, selection: str) -> None:
        self.url = f"{SCHEME}datasets/{repository}" + (f"@{revision}" if revision else "")
        self.url += f"/{prefix}" if prefix else ""
        self.selection = selection
        self._repository = repository
        self._revision = revision
        self._prefix = prefix
        self._commit: str | None = None
        self._fetches = Fetches()

    def __reduce__(self) -> tuple[Any, ...]:
        return HubSource, (self._repository, self._revision, self._prefix, self.selection)

    def list(self) -> Sequence[FileInfo]:
        """Return the files below the path, each by the digest of its content."""
        hub = _import_hub()
        # The library reads this when it is imported; whoever sets it later means it, too.
        api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        hint = "check owner, name and revision; for a private one, log in with 'hf auth login' or set HF_TOKEN"
        try:
            self._commit = api.dataset_info(self._repository, revision=self._revision or "main").sha
            entries = list(
                api.list_repo_tree(self._repository, recursive=True, repo_type="dataset", revision=self._commit)
            )
        except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
            raise DatasetNotFoundError(
                self.url, "the hub has no such dataset, or does not show it", hint=hint
            ) from error
        # The bases of the library's error: that of the HTTP client that it uses, whichever it is, and OSError.
        except hub.errors.HfHubHTTPError.__bases__ as error:
            problem = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise DatasetNotFoundError(self.url, f"the hub cannot be asked: {problem}", hint=hint) from error
        start = f"{self._prefix}/" if self._prefix else ""
        found = []
        for entry in entries:
            is_file = getattr(entry, "size", None) is not None
            if not is_file or not (entry.path.startswith(start) or entry.path == self._prefix):
                continue
            path = "" if entry.path == self._prefix else entry.path.removeprefix(start)
            if path == "" and self.selection:
                continue
            if path and (any(map(is_hidden, path.split("/"))) or not is_selected(path, self.selection)):
                continue
            digest = entry.lfs.sha256 if entry.lfs else entry.blob_id
            found.append(FileInfo(path, entry.size, digest))
        if [info.path for info in found] == [""]:
            # The path is that of one file: it is the only one, by its own name.
            above, _, name = self._prefix.rpartition("/")
            self._prefix, self.selection = above, name
            found = [FileInfo(name, found[0].size_bytes, found[0].version)]
        return sorted(found, key=lambda info: info.path)

    def name_of(self, path: str) -> str:
        """Return the address of a file."""
        base = f"{SCHEME}datasets/{self._repository}" + (f"@{self._revision}" if self._revision else "")
        return f"{base}/{self._prefix}/{path}" if self._prefix else f"{base}/{path}"

    def open(self, info: FileInfo, cache: Cache | None) -> RemoteFile:
        """Return the file at the commit that was listed; nothing is asked of the hub yet."""
        hub = _import_hub()
        if self._commit is None:
            self.list()
        inside = f"{self._prefix}/{info.path}" if self._prefix else info.path
        endpoint = os.environ.get("HF_ENDPOINT")
        url = hub.hf_hub_url(self._repository, inside, repo_type="dataset", revision=self._commit, endpoint=endpoint)
        return RemoteFile(
            WebReader(hub.utils.build_hf_headers()),
            url,
            name=self.name_of(info.path),
            size_bytes=info.size_bytes,
            etag=None,  # a commit does not change
            key=key_of(self, info),
            cache=cache,
            fetches=self._fetches,
        )

    def needs_cache(self, info: FileInfo) -> bool:
        """Never: the hub gives ranges."""
        return False

    def read_beside(self, name: str) -> bytes | None:
        """Nothing: an index lies in the cache."""
        return None

    def write_beside(self, name: str, data: bytes) -> bool:
        """Never: what is on the hub is only read."""
        return False


def open_hub(url: str) -> HubSource:
    """Return the dataset of an address; one that is not of a dataset is a ValueError that shows how they look."""
    kind, _, rest = url.removeprefix(SCHEME).partition("/")
    owner, _, rest = rest.partition("/")
    name, _, path = rest.strip("/").partition("/")
    name, _, revision = name.partition("@")
    if kind != "datasets" or not owner or not name:
        raise ValueError(f"{url!r} is not the address of a dataset; write hf://datasets/OWNER/NAME[@REVISION][/PATH]")
    prefix, selection = split_pattern(path)
    return HubSource(f"{owner}/{name}", revision.replace("%2F", "/") or None, prefix, selection)


def _import_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingExtraError("hub", needed_for="reading hf:// addresses") from error
    return huggingface_hub

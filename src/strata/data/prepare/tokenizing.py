"""Tokenizing a dataset once for all: files of tokens that load without copying, and Megatron's index beside each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from strata.data.prepare.engines import check_engine, run_tasks
from strata.data.prepare.unfinished import new_folder, remove, working_folder, write_directory
from strata.data.text.megatron import index_bytes
from strata.data.text.tokenizers import encode_documents, load_encoder, load_tokenizer, vocabulary_size
from strata.errors import DataError

if TYPE_CHECKING:
    from strata.data.rows.row_sequence import DatasetRows

# Documents that are encoded at once: enough for all threads of a tokenizer, and little memory.
BATCH_ROWS = 1_000
DTYPES = ("uint8", "uint16", "int32", "int64")
_PLAN = "_plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizePlan:
    """How text becomes tokens. The output depends on this and on the rows alone.

    ``tokenizer`` is the path of a ``tokenizer.json`` or ``tiktoken:NAME``; ``end`` is appended to each document.
    """

    tokenizer: str
    column: str = "text"
    end: int | None = None
    dtype: str | None = None
    rows_per_file: int = 50_000

    def __post_init__(self) -> None:
        if self.rows_per_file < 1:
            raise ValueError(f"rows_per_file={self.rows_per_file} must be 1 or more")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is no type of tokens; use one of {', '.join(DTYPES)}")


@dataclass(frozen=True, slots=True)
class Tokenized:
    """What was written."""

    url: str
    files: int
    documents: int
    tokens: int
    dtype: str


def tokenize(
    rows: DatasetRows,
    target: str,
    plan: TokenizePlan,
    *,
    processes: int | None = None,
    engine: str = "local",
    on_progress: Callable[[int, int], None] = lambda documents, tokens: None,
) -> Tokenized:
    """Write the tokens of all rows to ``target``, a new directory, which appears when it is whole.

    Files that an earlier try with the same plan has finished are kept. ``on_progress`` gets documents and tokens of
    each file that is done. On a cluster, ``target`` lies in a file system that all its machines share.
    """
    check_engine(engine)
    if "://" in target:
        raise ValueError(f"{target!r}: tokens are written to a directory; copy it to the store when it is whole")
    if plan.column not in rows.names:
        raise ValueError(f"there is no column {plan.column!r}; the columns are {', '.join(rows.names)}")
    if rows.num_rows == 0:
        raise DataError(f"{rows!r} has no rows, so there is nothing to tokenize")
    dtype = plan.dtype or choose_dtype(plan)
    count = -(-rows.num_rows // plan.rows_per_file)
    edges = [rows.num_rows * number // count for number in range(count + 1)]
    names = [f"part-{number:05}-of-{count:05}.{dtype}" for number in range(count)]
    documents = tokens = 0
    with write_directory(target, command="tokenize") as folder:
        _keep_or_clear(folder, _describe(rows, plan, dtype), names)
        with working_folder(folder) as working:
            tasks = []
            for number, name in enumerate(names):
                done = _read_done(folder / f"{name}.idx")
                if done is None:
                    tasks.append((rows, edges[number], edges[number + 1], plan, dtype, str(working), name))
                else:
                    documents, tokens = documents + done[0], tokens + done[1]
                    on_progress(*done)
            with closing(run_tasks(engine, tokenize_part, tasks, processes=processes)) as parts:
                for prefix, *found in parts:
                    for suffix in (".bin", ".idx"):  # the index last: a file that has one is complete
                        Path(f"{prefix}{suffix}").rename(folder / f"{Path(prefix).name}{suffix}")
                    documents, tokens = documents + found[0], tokens + found[1]
                    on_progress(*found)
        (folder / _PLAN).unlink()
    return Tokenized(target, count, documents, tokens, dtype)


def tokenize_part(
    rows: DatasetRows, start: int, stop: int, plan: TokenizePlan, dtype: str, working: str, name: str
) -> tuple[str, int, int]:
    """Write one file and its index; return their path, which no other attempt has, and their documents and tokens."""
    encode = _encoder(plan.tokenizer)
    kind = np.dtype(dtype)
    sizes: list[int] = []
    prefix = new_folder(Path(working)) / name
    with Path(f"{prefix}.bin").open("wb") as file:
        for low in range(start, stop, BATCH_ROWS):
            texts = rows.read(low, min(stop, low + BATCH_ROWS), [plan.column]).to_numpy()[plan.column]
            for document in encode_documents(encode, list(texts), end=plan.end, dtype=kind):
                file.write(document.astype(kind.newbyteorder("<"), copy=False).tobytes())
                sizes.append(len(document))
        file.flush()
        os.fsync(file.fileno())
    with Path(f"{prefix}.idx").open("wb") as file:
        file.write(index_bytes(sizes, kind))
        file.flush()
        os.fsync(file.fileno())
    return str(prefix), len(sizes), sum(sizes)


def choose_dtype(plan: TokenizePlan) -> str:
    """Return the narrowest type that holds every token of the vocabulary."""
    size = vocabulary_size(load_tokenizer(plan.tokenizer))
    return "uint16" if max(size - 1, plan.end or 0) < 2**16 else "int32"


@lru_cache(maxsize=4)
def _encoder(spec: str) -> Any:
    return load_encoder(spec)


def _describe(rows: DatasetRows, plan: TokenizePlan, dtype: str) -> str:
    tokenizer = Path(plan.tokenizer).expanduser()
    tokenizer = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    digest = xxhash.xxh3_128_hexdigest(tokenizer.read_bytes()) if tokenizer.is_file() else plan.tokenizer
    return json.dumps({**asdict(plan), "dtype": dtype, "tokenizer": digest, "rows": rows.fingerprint}, sort_keys=True)


def _keep_or_clear(folder: Path, described: str, names: list[str]) -> None:
    """Keep finished files of an earlier run with the same plan; remove everything else."""
    plan = folder / _PLAN
    kept = set()
    if plan.exists() and plan.read_text() == described:
        kept = {_PLAN, *(f"{name}{suffix}" for name in names for suffix in (".bin", ".idx"))}
    for left in list(folder.iterdir()):
        if left.name not in kept:
            remove(left)
    plan.write_text(described)


def _read_done(index: Path) -> tuple[int, int] | None:
    if not index.exists():
        return None
    from strata.data.text.megatron import MegatronRows

    found = MegatronRows(str(index))
    return found.num_rows, int(found.num_tokens)

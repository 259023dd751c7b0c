"""Tokenizers: Hugging Face ``tokenizers``, ``tiktoken`` or a function, as a transform of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from strata.errors import MissingExtraError

# Texts in, the numbers of their tokens out, one list for each.
EncodeFn: TypeAlias = Callable[[list[str]], Sequence[Sequence[int]]]
# A tokenizer of one of the libraries, a function, the path of a tokenizer.json, or "tiktoken:NAME".
TokenizerLike: TypeAlias = Any


class Tokenize:
    """A transform that puts the tokens of a column of text beside it, or in its place.

    ``end`` is appended to each document. A missing text is an empty document. It can be sent to other processes if the
    tokenizer can.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        *,
        column: str = "text",
        to: str = "tokens",
        end: int | None = None,
        keep: bool = False,
        dtype: str = "int32",
    ) -> None:
        self._tokenizer = tokenizer
        self._column = column
        self._to = to
        self._end = end
        self._keep = keep
        self._dtype = np.dtype(dtype)
        self._encode = load_encoder(tokenizer)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with its tokens, as an array of arrays."""
        if self._column not in batch:
            raise ValueError(f"there is no column {self._column!r} to tokenize; the columns are {', '.join(batch)}")
        made = {name: values for name, values in batch.items() if self._keep or name != self._column}
        documents = encode_documents(self._encode, batch[self._column], end=self._end, dtype=self._dtype)
        tokens = np.empty(len(documents), object)
        tokens[:] = documents
        made[self._to] = tokens
        return made

    def agreement(self) -> dict[str, Any]:
        """Return what decides which tokens come out; workers that pack them together must have the same."""
        return {
            "tokenizer": describe_tokenizer(self._tokenizer),
            "column": self._column,
            "to": self._to,
            "end": self._end,
            "dtype": str(self._dtype),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encode"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._encode = load_encoder(self._tokenizer)


def load_encoder(tokenizer: TokenizerLike) -> EncodeFn:
    """Return the function that encodes texts; special tokens are not added, and none is made of text."""
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer)
    home = type(tokenizer).__module__.partition(".")[0]
    if home == "tokenizers":
        return lambda texts: [each.ids for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    if home == "tiktoken":
        # Without its own threads: whoever calls has some.
        return lambda texts: [tokenizer.encode_ordinary(text) for text in texts]
    if hasattr(tokenizer, "backend_tokenizer"):
        return load_encoder(tokenizer.backend_tokenizer)
    if callable(tokenizer):
        encode: EncodeFn = tokenizer
        return encode
    raise TypeError(
        f"a {type(tokenizer).__name__} is no tokenizer; use one of tokenizers or tiktoken, the path of a "
        "tokenizer.json, 'tiktoken:NAME', or a function from a list of texts to lists of numbers"
    )


def load_tokenizer(spec: str | Path) -> Any:
    """Return the tokenizer of a ``tokenizer.json``, of a directory with one, or of ``tiktoken:NAME``."""
    text = str(spec)
    if text.startswith("tiktoken:"):
        try:
            import tiktoken
        except ImportError as error:
            raise MissingExtraError("text", needed_for="tokenizing with tiktoken") from error
        return tiktoken.get_encoding(text.removeprefix("tiktoken:"))
    path = Path(text).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"there is no tokenizer at {path}; give a tokenizer.json, or a name as in tiktoken:gpt2")
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("text", needed_for="tokenizing with a tokenizer.json") from error
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path} is no tokenizer: {error}") from error


def describe_tokenizer(tokenizer: TokenizerLike) -> Any:
    """Return what two processes say alike of the same tokenizer: its content where it has one, never where it lies."""
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer).expanduser()
        path = path / "tokenizer.json" if path.is_dir() else path
        return xxhash.xxh3_64_hexdigest(path.read_bytes()) if path.is_file() else str(tokenizer)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    home = type(tokenizer).__module__.partition(".")[0]
    if home == "tokenizers":
        return xxhash.xxh3_64_hexdigest(tokenizer.to_str().encode())
    return f"tiktoken:{tokenizer.name}" if home == "tiktoken" else tokenizer


def vocabulary_size(tokenizer: Any) -> int:
    """Return how many tokens there are in a tokenizer that :func:`load_tokenizer` returned."""
    return int(tokenizer.n_vocab if hasattr(tokenizer, "n_vocab") else tokenizer.get_vocab_size())


def encode_documents(
    encode: EncodeFn, texts: Sequence[Any], *, end: int | None, dtype: np.dtype[Any]
) -> list[npt.NDArray[Any]]:
    """Return the tokens of each text; one that the type cannot hold is an error."""
    plain = ["" if text is None else str(text) for text in texts]
    found = encode(plain)
    if len(found) != len(plain):
        raise ValueError(f"the tokenizer gave {len(found)} results for {len(plain)} texts; return one for each")
    tail = [] if end is None else [end]
    documents = []
    limits = np.iinfo(dtype)
    for tokens in found:
        array = np.array([*tokens, *tail])
        if array.size and array.dtype.kind not in "iu":
            raise ValueError(f"the tokenizer gave {tokens!r:.80}, which are no whole numbers; return numbers of tokens")
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise ValueError(f"token {int(array.max())} does not fit into {dtype}; use a wider dtype")
        documents.append(array.astype(dtype))
    return documents

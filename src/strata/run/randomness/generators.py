"""The random number generators of this process: read, put back and seeded, by public functions of each library."""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# Arrays stand in the JSON of a saved generator under these keys.
_ARRAY_KEYS = {"dtype", "base64"}
# The bytes of states are a multiple of so many.
SIZE_STEP = 4096
# What libraries raise for a state that is not one of theirs.
_REFUSALS = (ValueError, TypeError, KeyError, RuntimeError, OverflowError)


class RefusedStateError(Exception):
    """A generator did not take a saved state: it is of another kind, or of another version of its library."""


def is_generator(value: Any) -> bool:
    """Whether this is a generator of random, NumPy or torch whose state can be saved."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    return isinstance(value, np.random.Generator | np.random.RandomState) or _is_torch(value)


def find_generators() -> dict[str, Any]:
    """Return the generators that all code of this process shares, of the libraries that are imported.

    CUDA's are counted from the current device on, because a worker may get another device after a restart.
    """
    found: dict[str, Any] = {"python": random, "numpy": np.random}
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.default_generator
        if torch.cuda.is_initialized():
            generators, current = torch.cuda.default_generators, torch.cuda.current_device()
            for number in range(len(generators)):
                found[f"cuda+{number}"] = generators[(current + number) % len(generators)]
    return found


def read_state(generator: Any) -> Any:
    """Return the state of a generator: JSON's values, and arrays."""
    if generator is random or isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return version, np.array(words, np.uint32), gauss
    if generator is np.random or isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state().numpy()


def put_back(generator: Any, state: Any) -> None:
    """Have a generator go on from a state that was read before; raise RefusedStateError if it cannot."""
    try:
        if generator is random or isinstance(generator, random.Random):
            version, words, gauss = state
            generator.setstate((version, tuple(map(int, words)), gauss))
        elif generator is np.random or isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(sys.modules["torch"].from_numpy(state.copy()))
    except _REFUSALS as error:
        raise RefusedStateError(str(error)) from error


def seed(generator: Any, seed: int) -> None:
    """Have a generator begin anew, with a seed of 64 bits."""
    if generator is random or isinstance(generator, random.Random):
        generator.seed(seed)
    elif generator is np.random or isinstance(generator, np.random.RandomState):
        kind = getattr(np.random, generator.get_state(legacy=False)["bit_generator"])
        generator.set_state({**kind(seed).state, "has_gauss": 0, "gauss": 0.0})
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.manual_seed(seed)


def encode(states: Mapping[str, Any]) -> bytes:
    """Return states as bytes that any language can read: JSON, with the bytes of arrays in base64.

    Numbers have more digits or fewer, and spaces make up for that: a delta of a part needs its size to stay.
    """
    text = json.dumps(states, default=_array_to_json, separators=(",", ":"))
    return text.ljust(-(-len(text) // SIZE_STEP) * SIZE_STEP).encode()


def decode(data: bytes) -> dict[str, Any]:
    """Return the states that :func:`encode` made bytes of."""
    found: dict[str, Any] = json.loads(data, object_hook=_array_from_json)
    return found


def _array_to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return {"dtype": little.dtype.str, "base64": base64.b64encode(little.tobytes()).decode()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a generator's state has a {type(value).__name__}")


def _array_from_json(value: dict[str, Any]) -> Any:
    if value.keys() != _ARRAY_KEYS:
        return value
    array = np.frombuffer(base64.b64decode(value["base64"]), value["dtype"])
    return array.astype(array.dtype.newbyteorder("="))


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Generator)

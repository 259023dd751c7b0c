"""Fields that are arrays are known by their type, whatever NumPy makes of it."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAliasType

from strata.wire.codec import is_array

S = TypeVar("S", bound=np.generic)
# What numpy.typing.NDArray is since NumPy 2.5.
Alias = TypeAliasType("Alias", np.ndarray[Any, np.dtype[S]], type_params=(S,))


def test_an_array_is_known_as_a_class_and_as_an_alias() -> None:
    assert is_array(npt.NDArray[np.int64])
    assert is_array(Alias[np.int64])


def test_what_is_no_array_is_not_taken_for_one() -> None:
    assert not any(is_array(hint) for hint in (tuple[int, ...], dict[str, int], int, str))

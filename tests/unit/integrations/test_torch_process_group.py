"""By which address the other workers reach the store of the process group."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.part("torch")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:50051", "stratas://127.0.0.1:50051,127.0.0.2:50051", "strata://127.0.0.1,127.0.0.2"]
)
def test_a_coordinator_with_several_addresses_is_looked_for_at_the_first(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata.integrations.torch_process_group import _own_address

    monkeypatch.setenv("COORDINATOR_URL", url)
    assert _own_address() == "127.0.0.1"

"""Requests that schemathesis makes up, at the HTTP API of a guarded coordinator in its own process.

They come with a tenant's token, with none, and with tokens that are nearly right. No answer is a server error, none
tells of another tenant, and none repeats a token. ``make fuzz`` sends 10,000; a test run sends a few hundred.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from requests.adapters import HTTPAdapter

from strata.coordinator.entry.attempts import FREE
from strata.coordinator.http.http_gate import role_of_path
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import GuardedProcess

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "dashboard" / "openapi.json").read_text())
schema = schemathesis.openapi.from_dict(DOCUMENT)
KINDS = ("tenant", "nobody", "hostile")
MESSAGES = int(os.environ.get("STRATA_FUZZ_MESSAGES", "300"))
EACH = max(3, -(-MESSAGES // (len(DOCUMENT["paths"]) * len(KINDS))))
MAX_GROWTH_BYTES = 256 << 20
# In every name of another tenant, and in nothing that is sent.
FOREIGN = "c4f1e2"


class _From(HTTPAdapter):
    """Connects from an address of this machine."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, source_address=(self._address, 0))


@dataclass
class Knocking:
    """Where requests go, and from where: who is refused too often at one address is answered ever more slowly."""

    coordinator: GuardedProcess
    pid: int
    token: str
    chance: random.Random = field(default_factory=lambda: random.Random(3))
    _count: Iterator[int] = field(default_factory=itertools.count)
    _session: requests.Session | None = None

    def session(self) -> requests.Session:
        """Return a session from an address that was not refused too often."""
        number = next(self._count)
        if self._session is None or number % FREE == 0:
            if self._session is not None:
                self._session.close()
            self._session = requests.Session()
            place = number // FREE
            self._session.mount("http://", _From(f"127.{place // 62_500 + 1}.{place // 250 % 250}.{place % 250 + 2}"))
        return self._session

    def hostile_token(self) -> str:
        """Return a token that is nearly right, or nothing like one."""
        chance, letters = self.chance, list(self.token)
        for _ in range(chance.randint(1, 3)):
            letters[chance.randrange(len(letters))] = chr(chance.choice([*range(0x21, 0x7F), *range(0xA1, 0x100)]))
        changed = "".join(letters)
        wild = ["", "null", "x" * 9_000, "a.b.c", "strata_", f"{self.token}x", self.token[:-1], "Bearer " + self.token]
        return chance.choice([changed, chance.choice(wild)]) if changed != self.token else "x"

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def knocking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Knocking]:
    coordinator = GuardedProcess(tmp_path_factory.mktemp("fuzz"))
    with coordinator.serving() as process:
        admin = coordinator.admin
        for tenant in ("blue", FOREIGN):
            coordinator.call(admin, "CreateTenant", pb.CreateTenant(tenant=tenant))
        for tenant, name in (("blue", "blue"), (FOREIGN, FOREIGN)):
            job = f"{tenant}/job-{name}"
            worker = pb.RegisterWorker(job_id=job, worker_id=f"worker-{name}", incarnation="1")
            coordinator.call(admin, "RegisterWorker", worker)
            dataset = pb.RegisterDataset(job_id=job, dataset_id=f"data-{name}", total_samples=9, shard_size=3)
            coordinator.call(admin, "RegisterDataset", dataset)
        knocking = Knocking(coordinator, process.pid, coordinator.make_token("viewer", tenant="blue"))
        before_bytes = knocking.resident_bytes()
        yield knocking
        # It lives, nothing was thrown in it, and it has not grown.
        coordinator.call(admin, "GetStatus", pb.GetStatus())
        assert b"Traceback" not in coordinator.log()
        assert knocking.resident_bytes() - before_bytes < MAX_GROWTH_BYTES
        assert knocking.token.rpartition("_")[2].encode() not in coordinator.log()


@pytest.mark.parametrize("kind", KINDS)
@schema.parametrize()
@settings(
    max_examples=EACH,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
def test_no_request_breaks_or_loosens_the_api(case: Any, kind: str, knocking: Knocking) -> None:
    # A stream never ends, and a token comes from here.
    kept = {
        name: value for name, value in (case.headers or {}).items() if name.lower() not in ("accept", "authorization")
    }
    case.headers = {**kept, "Accept": "application/json"}
    token = {"tenant": knocking.token, "nobody": None, "hostile": knocking.hostile_token()}[kind]
    if token is not None:
        # requests encodes text as latin-1, which is what the header is read as.
        case.headers["Authorization"] = f"Bearer {token}"
    answer = case.call(base_url=knocking.coordinator.http_url, session=knocking.session())
    # A leader that is asked whether it is a standby says no with 503, as probes expect.
    assert answer.status_code < 500 or case.path == "/api/ready", (answer.status_code, answer.content)
    for secret in (FOREIGN, knocking.token.rpartition("_")[2]):
        assert secret.encode() not in answer.content
        assert secret not in str(dict(answer.headers))
    if kind == "tenant":
        assert answer.status_code not in (401, 403)
        excluded = [schemathesis.checks.not_a_server_error] if case.path == "/api/ready" else []
        case.validate_response(answer, excluded_checks=excluded)
    elif role_of_path(case.formatted_path) is not None:
        # 400 is for a header that is too long, or none at all.
        assert answer.status_code in (400, 401, 405, 431), (answer.status_code, answer.content)
        assert b"blue" not in answer.content

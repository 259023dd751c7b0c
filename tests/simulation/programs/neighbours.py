"""Other tenants of the same coordinator, with jobs and workers of the same names; and that nothing passes between."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from strata.cluster import commands as c
from strata.cluster.access import DEFAULT_TENANT, Principal, Role
from strata.cluster.access import administration as t
from strata.cluster.access.names import full_name, owner_of, tenant_of
from strata.cluster.access.quotas import Quotas
from strata.cluster.events import BarrierReleased, Effect
from strata.cluster.replies import HeartbeatReply, KeyValue, Registered
from strata.errors import AccessDeniedError, InvalidIdError, StrataError
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from tests.simulation.coordinator import Speaker
    from tests.simulation.world import World

# Odd names, so that they are found wherever they should not be.
TENANTS = ("tenant-blue", "tenant-red")
WORKERS = ("w0", "w1", "w2")
EVERY_S = 0.7
UNTIL_S = 60.0
KEY = "mark"
ADMIN = Principal("administrator", DEFAULT_TENANT, Role.ADMIN)


class NeighbourLink:
    """A neighbour's connection: nothing is lost on it, for what is looked at is whose the things are that come."""

    def __init__(self, neighbours: Neighbours, principal: Principal, worker_id: str) -> None:
        self._neighbours = neighbours
        self.principal = principal
        self.worker_id = worker_id
        self.is_open = True

    def deliver(self, effect: Effect) -> None:
        """Take an effect; it was looked at when it was sent."""
        self._neighbours.world.tally["neighbours' effects"] += 1
        if isinstance(effect, BarrierReleased) and set(effect.payloads) != {self.principal.tenant.encode()}:
            raise ViolationError(f"{self.principal.tenant} met {effect.payloads}")


class Neighbours:
    """Tenants that live beside the one whose job is trained, and an administrator that changes their quotas."""

    def __init__(self, world: World) -> None:
        self.world = world
        # A chance of their own: what they do changes nothing of what happens to the others.
        self._rng = Random(world.seed * 7 + 3)
        others = [name for name in (DEFAULT_TENANT, *TENANTS) if name != world.principal.tenant]
        self._principals = [Principal(f"worker of {name}", name, Role.WORKER) for name in others]
        self._links: dict[tuple[str, str], NeighbourLink] = {}
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._tokens = 0

    def tenants(self) -> tuple[str, ...]:
        """Return the tenants that there are from the start, beside the default one."""
        return TENANTS

    def start(self) -> None:
        """Begin to live."""
        for principal in self._principals:
            self.world.at(EVERY_S * self._rng.random(), lambda principal=principal: self._live(principal))
        self.world.at(EVERY_S, self._administer)

    # What they do.

    def _live(self, principal: Principal) -> None:
        if self.world.now_s > UNTIL_S:
            return
        self.world.at(EVERY_S * 2 * self._rng.random(), lambda: self._live(principal))
        if not self.world.coordinator.is_up or self.world.coordinator.frozen_until_s > self.world.now_s:
            return
        worker_id = self._rng.choice(WORKERS)
        link = self._links.setdefault((principal.tenant, worker_id), NeighbourLink(self, principal, worker_id))
        for command in self._commands(principal, worker_id):
            self.world.coordinator.hear(principal, command, lambda _: None, link)

    def _commands(self, principal: Principal, worker_id: str) -> list[c.Command]:
        sender = {"worker_id": worker_id, "incarnation": "1-n.1"}
        mark = principal.tenant.encode()
        generation, token = self._known(principal)
        choices: list[Callable[[], list[c.Command]]] = [
            lambda: [c.RegisterWorker(**sender)],
            lambda: [c.RegisterWorker(**sender), c.Heartbeat(**sender, step=len(mark))],
            lambda: [c.Heartbeat(**sender)],
            lambda: [c.SetKey(key=KEY, value=mark, token=token, writer=f"{self.world.now_s}"), c.GetKey(key=KEY)],
            lambda: [c.ArriveAtBarrier(**sender, generation=generation, name="begin", payload=mark, expected=1)],
            lambda: [c.RegisterDataset(dataset_id="d", total_samples=len(mark), shard_size=2)],
            lambda: [c.Goodbye(**sender)],
            lambda: [c.GetKey(job_id="unknown", key=KEY)],
            lambda: [c.Heartbeat(job_id=f"{other}/default", **sender) for other in TENANTS],
            lambda: [t.SetTenant(tenant=self.world.principal.tenant), t.RemoveTenant(tenant=TENANTS[0])],
        ]
        return self._rng.choice(choices)()

    def _known(self, principal: Principal) -> tuple[int, int]:
        job_id = full_name(principal.tenant, "default")
        assert self.world.cluster is not None
        if job_id not in self.world.cluster:
            return 1, 0
        job = self.world.cluster.job(job_id)
        return job.membership.generation, job.keys.get(KEY).token

    def _administer(self) -> None:
        if self.world.now_s > UNTIL_S:
            return
        self.world.at(EVERY_S * 4 * self._rng.random(), self._administer)
        tenant = self._rng.choice(self._principals).tenant
        self._tokens += self._rng.random() < 0.5
        number = self._rng.randint(1, max(1, self._tokens))
        command: c.Command = self._rng.choice(
            [
                t.SetTenant(tenant=tenant, quotas=Quotas(workers=self._rng.choice([1, 2, None]), keys=1)),
                t.CreateTenant(tenant=tenant),
                t.RemoveTenant(tenant=self.world.principal.tenant),
                t.CreateToken(tenant=tenant, token_id=f"k{self._tokens}", sha256="0" * 64, expires_s=30.0),
                t.RevokeToken(tenant=tenant, token_id=f"k{number}"),
            ]
        )
        if isinstance(command, t.RemoveTenant) and not self._is_busy(command.tenant):
            return  # nobody would make it again for those who train
        self.world.tally["tenant commands"] += 1
        self.world.coordinator.hear(ADMIN, command, lambda _: None)

    def _is_busy(self, tenant: str) -> bool:
        cluster = self.world.cluster
        return cluster is not None and any(
            job.membership.present() for job in cluster.access.tenant(tenant).jobs.values()
        )

    # What must hold.

    def check_applied(self, command: c.Command, reply: object, effects: list[Effect]) -> None:
        """A command changes its own tenant only, and has effects in its own job only."""
        cluster = self.world.cluster
        assert cluster is not None
        for effect in effects:
            if not isinstance(command, c.JobCommand) or effect.job_id != command.job_id:
                raise ViolationError(f"{command} has an effect in job {effect.job_id}: {effect}")
        if not command.durable:
            return
        if isinstance(command, c.RegisterWorker) and isinstance(reply, Registered):
            self._check_quota(command)
        owner = owner_of(command)
        for principal in self._principals:
            job_id = full_name(principal.tenant, "default")
            is_there = job_id in cluster
            now = _state(cluster.job(job_id)) if is_there else ()
            if principal.tenant != owner and self._seen.get(job_id, now) != now and self._seen[job_id] and is_there:
                raise ViolationError(f"{command} of tenant {owner} changed {job_id}")
            self._seen[job_id] = now

    def _check_quota(self, command: c.RegisterWorker) -> None:
        """Those that were there before a quota stay; nobody new comes in above it."""
        assert self.world.cluster is not None
        tenant = self.world.cluster.access.tenant(owner_of(command))
        limit, use = tenant.quotas.workers, tenant.use()["workers"]
        if limit is None:
            return
        self.world.tally["quotas kept"] += 1
        before = self._seen.get(command.job_id)
        if before and use > limit and command.worker_id not in before[1]:
            raise ViolationError(f"{command} was let in: {use} workers, and {limit} may be")

    def restarted(self) -> None:
        """The coordinator began anew from its journal: what was not durable is gone."""
        self._seen.clear()

    def check_answer(self, principal: Principal, command: c.Command, answer: object) -> None:
        """What a caller is answered is of its own tenant, and names no other."""
        self.world.tally["answers"] += 1
        if isinstance(answer, StrataError):
            self._check_error(principal, command, answer)
        if principal.sees_all:
            return
        if isinstance(command, t.TenantCommand) and not isinstance(answer, AccessDeniedError):
            raise ViolationError(f"{principal} was answered {answer} to {command}")
        if isinstance(command, c.JobCommand) and "/" in command.job_id and not isinstance(answer, InvalidIdError):
            raise ViolationError(f"{principal} was answered {answer} to {command}")
        if principal == self.world.principal:
            return
        if isinstance(answer, KeyValue) and answer.value not in (b"", principal.tenant.encode()):
            raise ViolationError(f"{principal.tenant} was told the key {answer.value!r}")
        if isinstance(answer, HeartbeatReply | Registered) and answer.world_size > len(WORKERS):
            raise ViolationError(f"{principal.tenant} was told of {answer.world_size} workers")

    def _check_error(self, principal: Principal, command: c.Command, error: StrataError) -> None:
        if principal.sees_all:
            return
        # Nothing that it did not say itself; of its own tenant, not the full names.
        hidden = [name for name in (*TENANTS, f"{principal.tenant}/") if name != principal.tenant]
        said = f"{error} {vars(error)}"
        if any(name in said and name not in repr(command) for name in hidden):
            raise ViolationError(f"{principal.tenant} was told: {said}")

    def check_delivery(self, link: Speaker, worker_id: str, effect: Effect, presented: Effect) -> None:
        """An effect goes to a worker of the tenant whose job it is of, with that tenant's name of it."""
        if tenant_of(effect.job_id) != link.principal.tenant:
            raise ViolationError(f"{link.principal.tenant} is sent {effect}")
        if isinstance(link, NeighbourLink) and link.worker_id != worker_id:
            raise ViolationError(f"{link.worker_id} is sent what is for {worker_id}: {effect}")
        if presented.job_id != "default":
            raise ViolationError(f"{link.principal.tenant} is shown the job {presented.job_id}")


def _state(job: Any) -> tuple[Any, ...]:
    """Return what other tenants could have changed of a neighbour's job."""
    return (
        job.membership.generation,
        job.membership.ids(),
        job.keys.get(KEY).token,
        tuple((each.dataset_id, each.total_samples) for each in job.ledger.datasets.values()),
    )

"""Principals: as whom a caller speaks, which tenant that belongs to, and in which role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

DEFAULT_TENANT = "default"
"""The tenant that always exists: of everyone who names no other, and of every journal from before there were any."""


class Role(StrEnum):
    """What a caller may do, from least to most."""

    VIEWER = "viewer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone whose identity was checked. ``jobs`` is a pattern of the job names that it may use, as of a shell."""

    name: str
    tenant: str
    role: Role
    jobs: str = "*"

    @property
    def sees_all(self) -> bool:
        """Whether it sees the jobs of every tenant, by their full names."""
        return self.role is Role.ADMIN

    def may_use(self, job_id: str) -> bool:
        """Whether a job of its own tenant is one that it may use, by the name that the tenant has for it."""
        return self.jobs == "*" or fnmatchcase(job_id, self.jobs)


LOCAL = Principal("local", DEFAULT_TENANT, Role.ADMIN)
"""Who speaks where nobody is asked who they are: on this machine, with nothing set up."""

"""Access rules: principals and roles, tenants with their quotas and tokens, and the names of jobs per tenant.

Nothing here checks a secret or a certificate: the transports do, and say as whom a caller speaks.
"""

from strata.cluster.access.principals import DEFAULT_TENANT, LOCAL, Principal, Role

__all__ = ["DEFAULT_TENANT", "LOCAL", "Principal", "Role"]

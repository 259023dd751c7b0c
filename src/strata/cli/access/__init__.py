"""Commands for access control: certificates, tokens and tenants, for administrators."""

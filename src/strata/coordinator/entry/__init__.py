"""Authentication and authorization: TLS, tokens, OIDC, roles, and the record of refused attempts.

What a token is and which tenant it belongs to is the cluster's; here is only what needs files, clocks and sockets.
"""

"""The dashboard: the built page as static files, and the standalone server of `strata dashboard`.

Its React source is in /dashboard at the root of the repository; ``make dashboard`` builds it into ``static``.
"""

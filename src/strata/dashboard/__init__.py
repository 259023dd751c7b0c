"""The built dashboard, served as static files.

Its React source is in /dashboard at the root of the repository; no Python logic lives here.
"""

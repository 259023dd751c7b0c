"""The health check of the images: exits with 0 if HTTP answers in this container, else with 1 and the reason.

    python3 health_check.py [PORT [PATH]]

It uses the standard library alone, because it is started every few seconds. It checks no certificate: it calls its own
container, and that one's name is not in it. Nor does it use a proxy, although Docker can set http_proxy in containers.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request


def main() -> int:
    """Ask once; a health check is repeated by whoever runs the container."""
    port, path = [*sys.argv[1:], *("8080", "/api/health")[len(sys.argv) - 1 :]][:2]
    scheme = "https" if os.environ.get("STRATA_TLS_CERT") else "http"
    context = ssl._create_unverified_context()  # noqa: S323
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"{scheme}://127.0.0.1:{port}{path}", timeout=4):
            return 0
    except urllib.error.HTTPError as error:
        sys.stderr.write(f"unhealthy: {error.code} {error.read(500).decode(errors='replace')}\n")
    except OSError as error:
        sys.stderr.write(f"unhealthy: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

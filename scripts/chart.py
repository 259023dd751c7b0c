"""What the Helm chart takes from elsewhere, copied in and compared: Helm reads nothing outside of the chart."""

from __future__ import annotations

import re
from pathlib import Path

from strata import __version__

CHART = "deploy/charts/strata"
# Where each file has its one source.
COPIES = {
    f"{CHART}/files/rules.yml": "deploy/prometheus/rules.yml",
    f"{CHART}/files/grafana.json": "deploy/grafana/strata.json",
}


def chart_files(root: Path) -> dict[str, str]:
    """Return the files of the chart that follow from others, by path."""
    described = (root / CHART / "Chart.yaml").read_text(encoding="utf-8")
    return {
        f"{CHART}/Chart.yaml": re.sub(r"^((?:app)?[vV]ersion): .*$", rf"\1: {__version__}", described, flags=re.M),
        **{copy: (root / source).read_text(encoding="utf-8") for copy, source in COPIES.items()},
    }

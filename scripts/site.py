"""The documentation as a site in build/site that works offline: docs/, README, and a reference from the docstrings.

A link or an anchor that leads nowhere, a docstring that cannot be read, or a public name without an entry ends it.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
REPOSITORY = "https://github.com/syrilj/Strata"
# The packages that programs import from; their __all__ is what the reference must have.
PACKAGES = {
    "strata": "The public names. A training script needs nothing else.",
    "strata.checkpoint": "Saving and restoring state.",
    "strata.storage": "Where bytes are kept.",
    "strata.data": "From files to batches.",
    "strata.sharding": "Who gets which samples, in which order: pure functions and values.",
}
# Entry points of libraries, which have no __all__.
FUNCTIONS = ("strata.integrations.torch_process_group.init_process_group", "strata.integrations.torchrun.get_handler")
PAGES = {
    "Start": ["run", "llm", "configuration", "examples"],
    "Parts": ["checkpoints", "data", "storage", "sharding", "coordinator", "cluster"],
    "Operate": ["deployment", "containers", "security", "ha", "observability", "dashboard", "errors", "performance"],
    "Develop": ["architecture", "testing", "decisions", "contributing", "changelog"],
}
OTHERS = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
SETTINGS = f"""
project = "Strata"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "Strata"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {{"source_repository": "{REPOSITORY}", "source_branch": "main", "source_directory": "docs/"}}
exclude_patterns = []
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_missing_lang", "misc.highlighting_failure"]
autodoc_typehints = "signature"
# Integrations are described where their libraries are not installed too.
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
autodoc_default_options = {{"members": True, "show-inheritance": False}}
python_use_unqualified_type_names = True
"""


def public_names() -> list[str]:
    """Return every name that has an entry in the reference."""
    found = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        found += [f"{package}.{name}" for name in module.__all__ if not name.startswith("__")]
    return [*found, *FUNCTIONS]


def write_source(target: Path) -> None:
    """Write the pages of the site as Sphinx reads them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for name, page in OTHERS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (target / f"{page}.md").write_text(_relocated(text, ROOT), encoding="utf-8")
    examples = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    (target / "examples.md").write_text(_relocated(examples, ROOT / "examples"), encoding="utf-8")
    for page in (target).glob("*.md"):
        if page.stem not in (*OTHERS.values(), "examples"):
            page.write_text(_relocated(page.read_text(encoding="utf-8"), ROOT / "docs"), encoding="utf-8")
    with (target / "index.md").open("a", encoding="utf-8") as index:
        index.write(_contents(target))
    (target / "api.md").write_text(reference(), encoding="utf-8")
    (target / "conf.py").write_text(SETTINGS, encoding="utf-8")


def reference() -> str:
    """Return the page of the reference; a name that stands in two packages is described in the first."""
    lines, described = ["# API reference", "", "Made from the docstrings.", ""], {}
    for package, what in PACKAGES.items():
        lines += [f"## {package}", "", what, ""]
        for name in (name for name in importlib.import_module(package).__all__ if not name.startswith("__")):
            thing = getattr(importlib.import_module(package), name)
            known = described.get(id(thing)) if isinstance(thing, type) or callable(thing) else None
            described.setdefault(id(thing), f"{package}.{name}")
            lines += _entry(f"{package}.{name}", thing, as_known=known)
    lines += ["## Integrations", "", "Each needs its library.", ""]
    for name in FUNCTIONS:
        lines += ["```{eval-rst}", f".. autofunction:: {name}", "```", ""]
    return "\n".join(lines)


def build(site: Path = SITE) -> None:
    """Write the site, or exit with what is wrong."""
    source = site.parent / f"{site.name}-source"
    write_source(source)
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source, site]
    if subprocess.run([str(word) for word in command], check=False).returncode != 0:
        sys.exit("the site was not built; see above")
    for extra in (".doctrees", ".buildinfo", "objects.inv"):
        path = site / extra
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    text = (site / "api.html").read_text(encoding="utf-8")
    if missing := [
        name for name in public_names() if f'id="{name}"' not in text and f"<code>{name}</code>" not in text
    ]:
        sys.exit(f"without an entry: {', '.join(missing)}")
    if outside := find_outside(site):
        sys.exit(f"the site loads from elsewhere: {', '.join(sorted(outside))}")


def find_outside(site: Path) -> set[str]:
    """Return what the pages would load from other hosts: scripts, styles, pictures, typefaces. Links are no loading."""
    loaded = re.compile(
        r"""(?:<(?:script|img|iframe)[^>]+src|<link[^>]+rel="(?:stylesheet|preload)"[^>]+href)="(https?:[^"]+)"""
        r"""|url\(["']?(https?:[^)"']+)|@import\s+["'](https?:[^"']+)"""
    )
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    found = (match for path in files for match in loaded.findall(path.read_text(encoding="utf-8")))
    return {address for match in found for address in match if address}


def _entry(name: str, thing: object, *, as_known: str | None) -> list[str]:
    if as_known is not None:
        return [f"<code>{name}</code>: see {{py:obj}}`{as_known}`.", ""]
    kind = "autoexception" if isinstance(thing, type) and issubclass(thing, BaseException) else "autoclass"
    if not isinstance(thing, type):
        kind = "autofunction" if callable(thing) else "autodata"
    return ["```{eval-rst}", f".. {kind}:: {name}", "```", ""]


def _contents(target: Path) -> str:
    """Return the table of contents, with the pages that there are."""
    there = {page.stem for page in target.glob("*.md")} - {"index", "api"}
    more = sorted(there - {page for pages in PAGES.values() for page in pages})
    groups = [
        "\n".join(
            ["```{toctree}", ":hidden:", f":caption: {title}", "", *(page for page in pages if page in there), "```"]
        )
        for title, pages in {**PAGES, **({"More": more} if more else {})}.items()
    ]
    return "\n\n".join(["", *groups, "```{toctree}\n:hidden:\n:caption: Reference\n\napi\n```", ""])


def _relocated(text: str, folder: Path) -> str:
    """Return the page with links that hold where the site has its pages; other files are on the repository's page."""

    def replace(match: re.Match[str]) -> str:
        path, anchor = match[2], match[3] or ""
        file = (folder / path).resolve()
        inside = file.relative_to(ROOT).as_posix()
        if inside in OTHERS:
            return f"{match[1]}({OTHERS[inside]}.md{anchor})"
        if inside == "examples/README.md":
            return f"{match[1]}(examples.md{anchor})"
        if inside.startswith("docs/"):
            return f"{match[1]}({inside.removeprefix('docs/')}{anchor})"
        return f"{match[1]}({REPOSITORY}/blob/main/{inside}{anchor})"

    return re.sub(r"(\])\(([^)#:\s]+)(#[^)]*)?\)", replace, text)


def main() -> None:
    """Run the command line."""
    build()
    print(f"{SITE.relative_to(ROOT)}/index.html: {len(list(SITE.glob('*.html')))} pages, {len(public_names())} names")


if __name__ == "__main__":
    main()

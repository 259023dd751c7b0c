"""``strata config``: which settings are in force, and where each comes from."""

from __future__ import annotations

from pydantic import SecretStr

from strata.cli.output import AsJson, print_json, print_table
from strata.config import Settings, load_settings, source_of


def show_config(*, as_json: AsJson = False) -> None:
    """Print every setting with its value and its source. Secrets are shown as stars.

    A value that is not valid is an error that says what was expected. So this command also checks a configuration.
    """
    settings = load_settings()
    rows = [(name, _shown(getattr(settings, name)), source_of(name)) for name in Settings.model_fields]
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source in rows})
    else:
        print_table(("setting", "value", "source"), ((name, value or "-", source) for name, value, source in rows))


def _shown(value: object) -> str | None:
    if value is None:
        return None
    return "********" if isinstance(value, SecretStr) else str(value)

"""An option that makes no sense ends a command before it does anything, with one line that shows the right form."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.cli.app import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["token", "create", "--role", "king"], "--role: 'king'; use viewer, worker, operator, admin"),
        (
            ["token", "create", "--role", "worker", "--expires", "soon"],
            "--expires: 'soon'; use a number and s, m, h, d or w, such as 30d",
        ),
        (["tls", "init", "tls", "--host", "coordinator:50051"], "--host 'coordinator:50051'; use a name or an address"),
        (["coordinator", "--tls-client-ca", "ca.pem"], "--tls-client-ca needs --tls-cert and --tls-key"),
        (
            ["rewind", "llm", "--to-step", "5", "--skip-batches", "7-9"],
            "--skip-batches: '7-9' is no range of batches; write FIRST..LAST, both included",
        ),
        (["run", "--standalone", "nowhere.py"], "there is no script 'nowhere.py'; give its path"),
        (["run", "--standalone", "no-such-program"], "there is no program 'no-such-program'; give its path, or a"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line_that_shows_the_right_form(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")  # the coordinator's command sets it for its process
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert shown.err.startswith("strata: error: Invalid value")
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

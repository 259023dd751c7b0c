"""What ``strata data audit`` prints, and when it has nobody to ask."""

from __future__ import annotations

import pytest

from strata.cli import audit
from strata.cli.app import main
from strata.cluster.replies import KeyValue
from strata.errors import CoordinatorLostError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.process import free_ports


def test_of_very_many_ranges_the_first_are_listed_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Every other sample of the first thousand.
    ranges = [pb.SampleRange(start=start, stop=start + 1) for start in range(0, 1_000, 2)]
    missing = pb.SampleRanges(samples=500, ranges=ranges)
    repeated = pb.SampleRanges(samples=3, ranges=[pb.SampleRange(start=1_501, stop=1_504)])
    found = pb.DataAudit(total_samples=2_000, missing=missing, repeated=repeated)
    monkeypatch.setattr("strata.client.unary.ask_audit", lambda *_, **__: found)
    monkeypatch.setattr("strata.client.unary.get_key", lambda *_: KeyValue())
    with pytest.raises(SystemExit) as ended:
        main(["data", "audit", "llm", "text", "--epoch", "3"])
    assert ended.value.code == 1
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "epoch 3 of dataset text: 1,500 of 2,000 samples were seen, 3 of them more than once"
    assert lines[0] == "  missing   0 to 0"
    assert lines[19:] == ["  missing   38 to 38", "  missing   and 480 more samples", "  repeated  1,501 to 1,503"]


@pytest.mark.parametrize("is_named", [True, False])
def test_without_a_coordinator_and_without_a_journal_nothing_can_be_audited(
    monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(audit, "DEFAULT_URL", f"127.0.0.1:{port}")
    arguments = ["--coordinator", f"127.0.0.1:{port}"] if is_named else []
    with pytest.raises(CoordinatorLostError, match=rf"the coordinator at 127\.0\.0\.1:{port} cannot be reached"):
        main(["data", "audit", "llm", "text", *arguments])

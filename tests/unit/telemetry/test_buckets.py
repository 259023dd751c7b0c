"""Buckets and tiers: nothing is counted twice and nothing is lost, however old it gets."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.cluster.values import PARTS
from strata.coordinator.telemetry import buckets
from strata.coordinator.telemetry.buckets import Bucket, Tiers, bin_of, quantile, resample

NOTES = st.lists(st.tuples(st.floats(0, 5_000), st.floats(0.001, 2.0), st.integers(0, len(PARTS) - 1)), max_size=200)


def small_tiers() -> Tiers:
    return Tiers(widths_s=(2.0, 30.0, 600.0), kept=(4, 3, 2))


def add(tiers: Tiers, at_s: float, seconds: float, part: int) -> None:
    bucket = tiers.at(at_s)
    bucket.parts[part] += seconds
    bucket.worker_s += seconds
    bucket.covered_s += seconds
    bucket.steps += 1


@given(notes=NOTES)
def test_the_total_is_what_was_noted_though_buckets_are_folded(notes: list[tuple[float, float, int]]) -> None:
    tiers = small_tiers()
    for at_s, seconds, part in notes:
        add(tiers, at_s, seconds, part)
    total = tiers.total()
    expected_s = math.fsum(seconds for _, seconds, _ in notes)
    assert math.isclose(total.covered_s, expected_s, abs_tol=1e-6)
    assert math.isclose(math.fsum(total.job_parts()), expected_s, abs_tol=1e-6)
    assert math.isclose(total.steps, len(notes))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(notes=NOTES, looks=st.sets(st.integers(0, 200)), is_sorted=st.booleans())
def test_the_running_total_is_the_sum_of_all_buckets_whenever_it_is_looked_at(
    notes: list[tuple[float, float, int]], looks: set[int], is_sorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "OPEN", 2)
    tiers = small_tiers()
    for number, (at_s, seconds, part) in enumerate(sorted(notes) if is_sorted else notes):
        add(tiers, at_s, seconds, part)
        if number not in looks:
            continue
        expected = Bucket(0.0, 0.0)
        for bucket in (tiers.older, *tiers):
            expected.fold(bucket)
        total = tiers.total()
        assert total.parts == pytest.approx(expected.parts)
        assert (total.steps, total.worker_s) == pytest.approx((expected.steps, expected.worker_s))


def test_a_look_at_a_long_history_adds_up_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers, folded = Tiers(), []
    for number in range(2_000):
        add(tiers, 2.0 * number, 2.0, 0)
    assert tiers.total().covered_s == pytest.approx(4_000.0)
    fold = Bucket.fold
    monkeypatch.setattr(Bucket, "fold", lambda self, other: (folded.append(other), fold(self, other)))
    add(tiers, 4_000.0, 2.0, 0)
    assert tiers.total().covered_s == pytest.approx(4_002.0)
    assert len(folded) <= buckets.OPEN + 5


@given(notes=NOTES)
def test_their_number_is_bounded(notes: list[tuple[float, float, int]]) -> None:
    tiers = small_tiers()
    for at_s, seconds, part in notes:
        add(tiers, at_s, seconds, part)
        assert all(len(tier) <= kept for tier, kept in zip(tiers.tiers, (4, 3, 2), strict=True))
        assert len(list(tiers)) <= 9


@given(notes=NOTES, newest=st.integers(0, 6))
def test_what_is_split_adds_up_to_the_total(notes: list[tuple[float, float, int]], newest: int) -> None:
    tiers = small_tiers()
    for at_s, seconds, part in notes:
        add(tiers, at_s, seconds, part)
    older, fresh = tiers.split(newest)
    starts_s = sorted(bucket.start_s for bucket in tiers.tiers[0].values())
    assert [bucket.start_s for bucket in fresh] == starts_s[max(0, len(starts_s) - newest) :]
    for bucket in fresh:
        older.fold(bucket)
    assert older.parts == pytest.approx(tiers.total().parts)
    assert older.steps == pytest.approx(len(notes))


def test_a_bucket_of_a_file_is_not_put_back_where_its_time_is_over() -> None:
    tiers = small_tiers()
    for start_s in (100.0, 102.0, 104.0, 106.0):
        tiers.put(0, Bucket(start_s, 2.0, covered_s=2.0))
    # What it holds is in a coarser bucket of the same file.
    tiers.put(0, Bucket(98.0, 2.0, covered_s=2.0))
    assert [bucket.start_s for bucket in tiers] == [100.0, 102.0, 104.0, 106.0]
    assert tiers.total().covered_s == 8.0


def test_seconds_of_the_job_are_shared_between_its_workers() -> None:
    bucket = Bucket(0.0, 2.0, covered_s=2.0)
    bucket.parts[0], bucket.parts[1] = 6.0, 2.0  # four workers, two seconds each
    assert bucket.job_parts()[:2] == [1.5, 0.5]


def test_folding_counts_each_second_of_the_job_once() -> None:
    many, few, both = Bucket(0.0, 2.0, covered_s=2.0), Bucket(2.0, 2.0, covered_s=2.0), Bucket(0.0, 30.0)
    many.parts[0] = 8.0
    few.parts[1] = 2.0
    both.fold(many)
    both.fold(few)
    assert both.job_parts()[:2] == [2.0, 2.0]
    assert both.covered_s == 4.0


@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=50))
def test_a_quantile_is_near_the_wait_that_it_stands_for(waits: list[float]) -> None:
    bucket = Bucket(0.0, 2.0)
    for wait_s in waits:
        bucket.note_wait(wait_s)
    found = quantile(bucket.waits, 1.0)
    assert found is not None
    assert bin_of(found) == bin_of(max(waits))
    assert quantile({}, 0.5) is None


def test_names_of_metrics_are_bounded() -> None:
    bucket = Bucket(0.0, 2.0)
    for number in range(1_000):
        bucket.note_metric(f"m{number}", 1.0)
    assert len(bucket.metrics) == 32


def test_resampling_keeps_every_second() -> None:
    tiers = Tiers()
    for at_s in range(100):
        add(tiers, float(at_s), 1.0, at_s % len(PARTS))
    rows = resample(list(tiers), since_s=0.0, until_s=100.0, width_s=10.0)
    assert len(rows) == 10
    assert [round(row.covered_s) for row in rows] == [10] * 10

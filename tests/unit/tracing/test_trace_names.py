"""Names of traces: every process comes to the same ids, and no two traces share one."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from strata.tracing.trace_names import TraceName, barrier_trace, checkpoint_trace, derive_ids, recovery_trace

NUMBERS = st.integers(0, 1 << 62)
TRACES = st.one_of(
    st.builds(checkpoint_trace, NUMBERS, NUMBERS),
    st.builds(barrier_trace, NUMBERS, st.text(max_size=128), NUMBERS),
    st.builds(recovery_trace, NUMBERS),
)


@given(seed=st.text(min_size=1, max_size=64), one=TRACES, other=TRACES)
def test_two_traces_have_the_same_id_only_if_they_are_about_the_same(
    seed: str, one: TraceName, other: TraceName
) -> None:
    assert (derive_ids(seed, one) == derive_ids(seed, other)) == (one == other)


@given(one=st.uuids(), other=st.uuids(), trace=TRACES)
def test_two_runs_of_one_job_name_share_no_trace(one: object, other: object, trace: TraceName) -> None:
    assert (derive_ids(str(one), trace) == derive_ids(str(other), trace)) == (one == other)


@given(seed=st.text(max_size=64), trace=TRACES)
def test_ids_are_those_that_opentelemetry_takes(seed: str, trace: TraceName) -> None:
    ids = derive_ids(seed, trace)
    assert 0 < ids.trace_id < 1 << 128
    assert 0 < ids.root_id < 1 << 64


def test_another_process_comes_to_the_same_ids() -> None:
    source = "from strata.tracing.trace_names import *; print(derive_ids('seed', barrier_trace(3, 'ü/1', 1)).trace_id)"
    told = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout
    assert int(told) == derive_ids("seed", barrier_trace(3, "ü/1", 1)).trace_id

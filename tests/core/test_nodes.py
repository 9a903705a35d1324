"""Which node has a job, and until when."""

from tollgate.core.nodes import JobLease, taken


def test_job_is_held_until_its_expiry_and_then_free_for_another_node() -> None:
    first = taken(None, "close", "a", 100.0, 30.0)
    assert first == JobLease("close", 100.0, "a", 130.0)
    assert taken(first, "close", "b", 129.9, 30.0) is None
    assert taken(first, "close", "a", 120.0, 30.0) == JobLease("close", 100.0, "a", 150.0)
    assert taken(first, "close", "b", 130.0, 30.0) == JobLease("close", 100.0, "b", 160.0)

"""Failed attempts that are taken back after a success, while others fail."""

from tests.control.services.harness import Harness

from tollgate.control.services import throttle

FREE = throttle.Backoff(free=100, first_wait=60.0, max_wait=900.0, forgiven_after=3_600.0)


def test_success_takes_back_its_own_attempt_and_no_other(harness: Harness) -> None:
    context = harness.plane.context

    async def attempt() -> throttle.Before:
        async with context.store.changing() as records:
            return await throttle.begin(context, records, [("key", FREE)], "attempts")

    async def taken_back(before: throttle.Before) -> tuple[int, float] | None:
        async with context.store.changing() as records:
            await throttle.take_back(records, "key", before)
            kept = await records.failures.get("key")
            return (kept.count, kept.created_at) if kept else None

    attempts = []
    for _ in range(4):
        attempts.append(harness.do(attempt()))
        harness.clock.advance(1.0)
    now = harness.clock()
    # The second succeeds after two others have started: those stay counted, with their time.
    assert harness.do(taken_back(attempts[1])) == (3, now - 1.0)
    # The last one left is removed with its time.
    assert harness.do(taken_back(attempts[2])) == (2, now - 3.0)
    assert harness.do(taken_back(attempts[0])) == (1, now - 3.0)
    assert harness.do(taken_back(attempts[0])) is None

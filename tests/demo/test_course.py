"""What is done to a simulated chain: blocks, pauses, reorganisations and transactions, in any order."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tollgate.demo.chain import BLOCK_SECONDS, HISTORY_BLOCKS, Chain, Sent, transaction_count
from tollgate.demo.chain_view import View, transaction_hash
from tollgate.demo.course import (
    MAX_SENT,
    Accepted,
    Course,
    Deed,
    Mined,
    Paused,
    Reorganised,
    Resumed,
    after,
    begin,
)

GENESIS = 1_800_000_000
START = 200
NOW = GENESIS + START * BLOCK_SECONDS + 0.5
ETH = Chain("eth", "mainnet", GENESIS)
STARKNET = Chain("starknet", "mainnet", GENESIS, hash_bits=251, seed=3)

chains = st.sampled_from([ETH, STARKNET])


def sent(number: int) -> Sent:
    return Sent(number.to_bytes(32, "big"))


def view(course: Course, now: float) -> View:
    return View(course.chain, course.head(now), course.sent, course.slots)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, float, int, bool]]:
    """Draw what is done, after how many seconds, how much of it, and whether a reorganisation makes it longer."""
    kinds = st.sampled_from(["mine", "pause", "resume", "reorg", "send"])
    step = st.tuples(kinds, st.floats(0, 5), st.integers(1, 12), st.booleans())
    return draw(st.lists(step, max_size=12))


def deed(kind: str, at: float, many: int, longer: bool, course: Course, number: int) -> Deed:
    match kind:
        case "mine":
            return Mined(at, many)
        case "pause":
            return Paused(at)
        case "resume":
            return Resumed(at)
        case "reorg":
            return Reorganised(at, course.head(at) - many + 1, longer)
    return Accepted(at, sent(number))


def told(chain: Chain, story: list[tuple[str, float, int, bool]]) -> tuple[Course, float]:
    course, now = begin(chain), NOW
    for number, (kind, seconds, many, longer) in enumerate(story):
        now += seconds
        course = after(course, deed(kind, now, many, longer, course, number))
    return course, now


@given(chains, stories())
def test_parent_hashes_fit_together_whatever_is_done(
    chain: Chain, story: list[tuple[str, float, int, bool]]
) -> None:
    course, now = told(chain, story)
    head = course.head(now)
    hashes = [course.chain.block_hash(height) for height in range(head - 150, head + 1)]
    assert len(set(hashes)) == len(hashes)
    for at, found in enumerate(hashes):
        assert course.chain.block_height(found) == head - 150 + at


@given(chains, stories())
def test_every_submitted_transaction_is_in_one_block_or_waits_for_one(
    chain: Chain, story: list[tuple[str, float, int, bool]]
) -> None:
    course, now = told(chain, story)
    seen = view(course, now)
    expected = {sent(number).hash for number, step in enumerate(story) if step[0] == "send"}
    mined = [
        transaction_hash(seen.chain, move)
        for height in range(seen.head + 1)
        for move in seen.moves(height)[transaction_count(height) :]
    ]
    waiting = [name for name in seen.slots if seen.waiting(name)]
    assert sorted([*mined, *waiting]) == sorted(expected)
    for name in mined:
        move = seen.find(name)
        assert move is not None
        assert transaction_hash(seen.chain, move) == name
        assert seen.move_at(*move.place) == move


@given(chains, stories())
def test_a_reorganisation_replaces_what_it_names_and_nothing_below(
    chain: Chain, story: list[tuple[str, float, int, bool]]
) -> None:
    course, now = told(chain, story)
    head = course.head(now)
    other = after(course, Reorganised(now, head - 4, longer=True))
    assert other.head(now) == head + 1
    for height in range(head - 30, head + 1):
        is_same = course.chain.block_hash(height) == other.chain.block_hash(height)
        assert is_same == (height < head - 4)
    # Doing it again gives blocks that were never there.
    again = after(other, Reorganised(now, head - 4))
    assert again.chain.block_hash(head) not in {course.chain.block_hash(head), other.chain.block_hash(head)}


@given(chains, stories(), st.integers(0, 20))
def test_the_head_goes_back_by_nothing_that_is_done(
    chain: Chain, story: list[tuple[str, float, int, bool]], slack: int
) -> None:
    course, now = replace(begin(chain), slack=slack / 10), NOW
    before = course.head(now)
    for number, (kind, seconds, many, longer) in enumerate(story):
        now += seconds
        course = after(course, deed(kind, now, many, longer, course, number))
        assert course.head(now) >= before
        before = course.head(now)


@given(st.floats(0, 3), st.floats(0, 0.3))
def test_a_deed_read_late_changes_no_block_that_was_shown_meanwhile(seconds: float, late: float) -> None:
    course = replace(begin(ETH), slack=0.3)
    at = NOW + seconds
    shown = course.head(at + late)
    for done in (Accepted(at, sent(1)), Paused(at)):
        changed = after(course, done)
        assert changed.head(at + late) >= shown
        assert not any(height <= shown for height in changed.sent)


def test_the_same_name_gives_the_same_branch_whatever_was_there_before() -> None:
    plain = after(begin(ETH), Reorganised(NOW, START - 1, name="b"))
    reorganised = after(begin(ETH), Reorganised(NOW, START - 1))
    renamed = after(reorganised, Reorganised(NOW, START - 1, name="b"))
    assert plain.chain.block_hash(START) == renamed.chain.block_hash(START)
    assert reorganised.chain.block_hash(START) != plain.chain.block_hash(START)


def test_paused_time_makes_no_blocks_and_resumed_time_does() -> None:
    paused = after(begin(ETH), Paused(NOW))
    assert paused.head(NOW + 100) == START
    assert after(paused, Mined(NOW, 3)).head(NOW + 100) == START + 3
    resumed = after(paused, Resumed(NOW + 100))
    assert resumed.head(NOW + 100 + 1.9) == START
    assert resumed.head(NOW + 100 + 2.1) == START + 1
    assert after(resumed, Resumed(NOW + 101)) == resumed


def test_without_a_block_time_only_mining_makes_blocks() -> None:
    course = begin(replace(ETH, block_seconds=0))
    assert course.head(NOW) == course.head(NOW + 10**6) == HISTORY_BLOCKS
    course = after(after(course, Resumed(NOW)), Mined(NOW, 2))
    assert course.head(NOW + 10**6) == HISTORY_BLOCKS + 2


def test_what_waits_is_in_the_next_block_however_it_is_made() -> None:
    course = after(begin(ETH), Accepted(NOW, sent(1)))
    assert course.slots == {sent(1).hash: START + 1}
    for done in (Mined(NOW, 1), Reorganised(NOW, START, longer=True)):
        assert view(after(course, done), NOW).find(sent(1).hash) is not None


def test_what_a_reorganisation_takes_away_waits_for_the_next_block() -> None:
    course = after(after(begin(ETH), Accepted(NOW, sent(1))), Mined(NOW, 3))
    course = after(course, Reorganised(NOW, START + 1))
    assert course.slots == {sent(1).hash: START + 4}
    assert view(course, NOW).waiting(sent(1).hash) is not None


def test_what_was_submitted_is_not_taken_in_again() -> None:
    course = after(begin(ETH), Accepted(NOW, sent(1)))
    assert after(course, Accepted(NOW + 9, sent(1))) is course


def test_the_number_of_submitted_transactions_that_are_kept_has_a_bound() -> None:
    course = begin(ETH)
    for number in range(MAX_SENT + 5):
        course = after(course, Accepted(NOW + number // 1000 * BLOCK_SECONDS, sent(number)))
    assert len(course.slots) == MAX_SENT == sum(map(len, course.sent.values()))
    assert sent(4).hash not in course.slots
    assert sent(5).hash in course.slots
    assert sent(MAX_SENT + 4).hash in course.slots


def test_seeds_make_chains_that_share_nothing_but_addresses() -> None:
    other = replace(ETH, seed=1)
    assert other.block_hash(5) != ETH.block_hash(5)
    assert other.block_height(ETH.block_hash(5)) is None
    assert other.lasting("account", 1) == ETH.lasting("account", 1)

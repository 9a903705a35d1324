"""What every log of shared answers does: each worker gets what others sent, once and unchanged."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest
from tests.contract.backends import params
from tests.contract.lease_books import server

from tollgate.store.base import AnswerLog, SharedAnswer, SharedUnreachable
from tollgate.store.valkey import MAX_ANSWERS, ValkeyAnswerLog, prefix

MAIN, TEST = "eth/mainnet@0x1", "eth/sepolia@0xaa36a7"
ANSWER = SharedAnswer(b'eth_getBlockByNumber("0x1"\0true', 1, b'{"number":"0x1"}')


class MemoryAnswerLog:
    """Answers in a list that logs have in common."""

    def __init__(self, common: dict[str, list[tuple[object, SharedAnswer]]]) -> None:
        self._common = common
        self._read: dict[str, int] = {}

    async def exchange(
        self, networks: Sequence[str], sent: Mapping[str, Sequence[SharedAnswer]]
    ) -> dict[str, list[SharedAnswer]]:
        for network, answers in sent.items():
            self._common.setdefault(network, []).extend((self, each) for each in answers)
        found = {}
        for network in networks:
            start = self._read.get(network, 0)
            new = self._common.get(network, [])[start : start + 16]
            self._read[network] = start + len(new)
            if new:
                found[network] = [each for by, each in new if by is not self]
        return found

    async def forget(self, network: str) -> None:
        self._common.pop(network, None)
        self._read.pop(network, None)

    async def close(self) -> None:
        """Nothing to release."""


Make = Callable[[], AnswerLog]


@pytest.fixture(params=params(["memory", "valkey"]))
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[AnswerLog] = []
    common: dict[str, list[tuple[object, SharedAnswer]]] = {}
    if request.param == "valkey":
        server().command("FLUSHALL")

    def log() -> AnswerLog:
        made.append(MemoryAnswerLog(common) if request.param == "memory" else in_valkey(b"secret"))
        return made[-1]

    yield log
    for each in made:
        await each.close()


def in_valkey(secret: bytes) -> ValkeyAnswerLog:
    return ValkeyAnswerLog(server().url, prefix(b"test"), secret, seconds=10)


async def test_others_get_what_one_sends_and_get_it_once(make: Make) -> None:
    one, other = make(), make()
    assert await one.exchange([MAIN], {MAIN: [ANSWER]}) in ({}, {MAIN: []}), "not one's own"
    assert await other.exchange([MAIN], {}) == {MAIN: [ANSWER]}
    assert await other.exchange([MAIN], {}) == {}


async def test_networks_are_apart(make: Make) -> None:
    one, other = make(), make()
    await one.exchange([MAIN, TEST], {MAIN: [ANSWER]})
    assert await other.exchange([TEST], {}) == {}
    assert await other.exchange([MAIN, TEST], {}) == {MAIN: [ANSWER]}


async def test_new_reader_gets_earlier_answers(make: Make) -> None:
    answers = [SharedAnswer(b"eth_call(%d" % number, number, b'"0x"') for number in range(40)]
    await make().exchange([MAIN], {MAIN: answers})
    newcomer = make()
    got = [answer for _ in range(4) for answer in (await newcomer.exchange([MAIN], {})).get(MAIN, [])]
    assert got == answers, "some in each turn"


async def test_empty_exchange_is_accepted(make: Make) -> None:
    assert await make().exchange([], {}) == {}


async def test_forgotten_answers_are_not_delivered(make: Make) -> None:
    one, other = make(), make()
    await one.exchange([MAIN], {MAIN: [ANSWER]})
    await one.forget(MAIN)
    assert await other.exchange([MAIN], {}) == {}


# --- Valkey alone ------------------------------------------------------------------------------------------


@pytest.mark.e2e
async def test_answers_of_another_installation_are_skipped() -> None:
    server().command("FLUSHALL")
    other, one = in_valkey(b"another secret"), in_valkey(b"secret")
    await other.exchange([MAIN], {MAIN: [ANSWER]})
    server().command("XADD", f"{prefix(b'test')}answers:{MAIN}", "*", "block", "x")
    assert await one.exchange([MAIN], {}) == {MAIN: []}
    for each in (other, one):
        await each.close()


@pytest.mark.e2e
async def test_stream_is_bounded() -> None:
    server().command("FLUSHALL")
    one = in_valkey(b"secret")
    for _ in range(4):
        await one.exchange([], {MAIN: [ANSWER] * (MAX_ANSWERS // 2)})
    length = int(server().command("XLEN", f"{prefix(b'test')}answers:{MAIN}")[1:].split(b"\r")[0])
    assert MAX_ANSWERS <= length <= MAX_ANSWERS + 256
    await one.close()


@pytest.mark.e2e
async def test_stream_that_others_replaced_is_an_outage_until_it_is_gone() -> None:
    server().command("FLUSHALL")
    one, stream = in_valkey(b"secret"), f"{prefix(b'test')}answers:{MAIN}"
    server().command("SET", stream, "x")
    with pytest.raises(SharedUnreachable):
        await one.exchange([MAIN], {MAIN: [ANSWER]})
    server().command("FLUSHALL")
    assert await one.exchange([MAIN], {MAIN: [ANSWER]}) == {MAIN: []}
    await one.close()

"""What is measured: bodies, connections, rounds. Values only; nothing here starts or reads anything."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product

CASES_OF = ("direct", "nginx", "tollgate")
PARTS = (*CASES_OF, "workers", "tokens", "memory")

CONNECTIONS = (32, 256)
FEW_TOKENS = 10
MANY_TOKENS = 100_000
MORE_WORKERS = (2, 4)
OPEN_CONNECTIONS = 2_000

REVERTED = '{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted"}}'
SINGLE_ANSWER = '{"jsonrpc":"2.0","id":1,"result":"0x1234"}'
BATCH_ANSWER = "[" + ",".join(f'{{"jsonrpc":"2.0","id":{i},"result":"0x1234"}}' for i in range(10)) + "]"
_HASH, _PARENT = "0x" + "b1" * 32, "0x" + "b0" * 32
BLOCK_ANSWER = f'{{"jsonrpc":"2.0","id":1,"result":{{"number":"0x1","hash":"{_HASH}","parentHash":"{_PARENT}"}}}}'
"""The stub's chain: its first block is its newest and final, and nothing is missing below it."""


class BenchError(Exception):
    """Something did not run; the message names it, and what to do."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request body, and the path under which the stub answers it."""

    name: str
    stub_path: str
    gateway_path: str
    ids: tuple[int, ...]
    text: str = field(repr=False)
    counted: str = ""
    """Digits in the text that count up from call to call, so that no two calls are the same."""


def _call(call_id: int, method: str, *params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}


def _balance(call_id: int) -> dict[str, object]:
    return _call(call_id, "eth_getBalance", f"0x407d73d8a49eeb85d32cf465507dd71d507{call_id:05x}", "latest")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# Those that the stub answers with, which cannot read them: a gateway may send the caller's ids or its own.
_BATCH_IDS = tuple(range(10))

SINGLE = Body("single", "/single", "/x/eth/mainnet", (1,), _compact(_balance(1)))
BATCH = Body("batch10", "/batch10", "/x/eth/sepolia", _BATCH_IDS, _compact([_balance(i) for i in _BATCH_IDS]))

# As providers answer: compressed, or with an id and a date in every head.
GZIP = Body("gzip", "/gzip", "/x/eth/gzip", (1,), SINGLE.text)
UNIQUE = Body("unique", "/unique", "/x/eth/unique", (1,), SINGLE.text)

# With a cache and two upstreams: an answer that is always valid, and calls that nobody has made before. They have
# networks of their own, because the metrics of a network show how its calls were answered.
HIT = Body("hit", "/single", "/x/eth/hit", (1,), _compact(_call(1, "eth_chainId")))
_DIGITS = "0" * 16
_OF_A_FINAL_BLOCK = _call(1, "eth_getBalance", f"0x407d73d8a49eeb85d32cf465{_DIGITS}", "0x1")
MISS = Body("miss", "/single", "/x/eth/miss", (1,), _compact(_OF_A_FINAL_BLOCK), _DIGITS)

CACHED = (HIT, MISS)

# With two upstreams and no cache: healthy, and with reverts and failed attempts as real traffic has them. The stub
# takes as long for both.
HEALTHY = Body("healthy", "/healthy", "/x/eth/healthy", (1,), SINGLE.text)
MIXED = Body("mixed", "/mixed", "/x/eth/mixed", (1,), SINGLE.text)
REVERTS, FAILURES = "5%", "1%"
"""The shares of attempts that revert, and that fail with status 503."""

PROXIED = (SINGLE, BATCH, GZIP, UNIQUE, *CACHED)
"""What nginx can be compared in: it repeats nothing."""
BODIES = (*PROXIED, HEALTHY, MIXED)

# What the prober requests for head and finality. The stub knows them by their lengths, which no body above shares.
PROBES = tuple(_compact(_call(1, "eth_getBlockByNumber", tag, False)) for tag in ("latest", "finalized"))


@dataclass(frozen=True, slots=True)
class Case:
    """One body at one number of connections."""

    body: Body
    connections: int


# Without a gateway only these are worth a comparison.
DIRECT = (SINGLE, BATCH)
CASES = (
    *(Case(body, connections) for body, connections in product((*DIRECT, *CACHED), CONNECTIONS)),
    *(Case(body, CONNECTIONS[0]) for body in (GZIP, UNIQUE, HEALTHY, MIXED)),
)
WORKERS_CASE = Case(SINGLE, CONNECTIONS[-1])


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, and which parts."""

    parts: tuple[str, ...] = PARTS
    seconds: int = 1
    rounds: int = 12

    def token_rounds(self) -> int:
        """Rounds of one second, where a few per cent matter: many short pairs even out a restless machine."""
        return 2 * self.rounds

    def slices_seconds(self) -> int:
        """How long a server is under load that does something in every other slice of time."""
        return 2 * self.rounds * self.seconds

    def subjects(self) -> tuple[str, ...]:
        """Servers to put through the cases, in their order in the tables."""
        return tuple(name for name in CASES_OF if name in self.parts)

    def estimate_seconds(self) -> int:
        """About how long the run takes; wrk and the counting around it add a quarter of a second a round."""
        bodies = {"direct": DIRECT, "nginx": PROXIED, "tollgate": BODIES}
        cases = sum(case.body in bodies[name] for name in self.subjects() for case in CASES)
        cases += 2 * len(MORE_WORKERS) if "workers" in self.parts else 0
        total = cases * (1.25 + self.rounds * (self.seconds + 0.25))
        total += 15 + 2 * (4 + self.rounds * self.seconds) if "tollgate" in self.parts else 0
        if "tokens" in self.parts:
            total += 2 * 1.25 * (1 + self.token_rounds())
        if "tokens" in self.parts or "memory" in self.parts:
            total += 15
        return round(total)

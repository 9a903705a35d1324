"""The `demo_…` methods, by which a test makes a simulated node lag, fail, crawl, and its chain reorganise.

Owns those methods and the faults of one network of one node. Parameters come by position or by name, and every
method answers with the state that it left. They are answered where the node was started with control, at once,
and never by a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tollgate.demo.chain import Chain
from tollgate.demo.chain_params import (
    Args,
    RpcError,
    Shape,
    array,
    bind,
    integer,
    invalid,
    mapping,
    unknown_method,
)
from tollgate.demo.course import (
    DEEPEST_REORG,
    MAX_BLOCKS_AT_ONCE,
    MAX_FORKS,
    Course,
    Deed,
    Mined,
    Paused,
    Reorganised,
    Resumed,
)
from tollgate.demo.network import SimulatedNetwork

PREFIX = "demo_"
REFUSED = -32000
INTERNAL_ERROR = -32603

_MAX_CALLS = 1_000_000
_LONGEST_DELAY = 60_000
_LONGEST_RETRY = 86_400
_MAX_METHODS = 100
_LONGEST_NAME = 64


class HttpFault(Exception):
    """The answer is an HTTP status and no JSON-RPC at all."""

    def __init__(self, status: int, retry_after: int | None) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.retry_after = retry_after


class _Failing(NamedTuple):
    calls: int
    make: Callable[[], Exception]
    methods: frozenset[str]


class _Crawling(NamedTuple):
    seconds: float
    methods: frozenset[str]


class Faults:
    """What is wrong with the answers of one network."""

    def __init__(self) -> None:
        self.failing: _Failing | None = None
        self.crawling: _Crawling | None = None

    def fail(self, method: str) -> None:
        """Raise what the answer to a call is to be instead of the truth, if it is."""
        failing = self.failing
        if failing is None or (failing.methods and method not in failing.methods):
            return
        left = failing.calls - 1
        self.failing = failing._replace(calls=left) if left else None
        raise failing.make()

    def delay(self, method: str) -> float:
        """Return how many seconds the answer to a call is to be kept back."""
        crawling = self.crawling
        if crawling is None or (crawling.methods and method not in crawling.methods):
            return 0.0
        return crawling.seconds


class Visit:
    """One request to one network: answers its calls, and knows how long to keep the answer back."""

    def __init__(self, network: SimulatedNetwork, faults: Faults | None) -> None:
        self.network = network
        self.wait = 0.0
        """Seconds."""
        self._faults = faults

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or raise `RpcError` or `HttpFault`."""
        if self._faults is not None:
            if method.startswith(PREFIX):
                return control(self.network, self._faults, method, params, now)
            self.wait = max(self.wait, self._faults.delay(method))
            self._faults.fail(method)
        return self.answer_truly(method, params, now)

    def answer_truly(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, whatever faults there are."""
        return self.network.answer(method, params, now)


def control(network: SimulatedNetwork, faults: Faults, method: str, params: object, now: float) -> Shape:
    """Answer one of the methods of control."""
    known = _METHODS.get(method.removeprefix(PREFIX))
    if known is None:
        raise unknown_method(method)
    names, required, act = known
    act(_Desk(network, faults, now), bind(names, required, params))
    return _state(network, faults, now)


class _Desk(NamedTuple):
    network: SimulatedNetwork
    faults: Faults
    now: float


def _state(network: SimulatedNetwork, faults: Faults, now: float) -> Shape:
    course = network.course
    view = network.view(now)
    return {
        "head": course.head(now),
        "shown": view.head,
        "hash": _written(view.chain, view.chain.block_hash(view.head)),
        "running": course.running,
        "lag": network.lag,
        "syncing": network.syncing,
        "held": network.held,
        "forks": [fork.height for fork in course.chain.forks],
        "waiting": sum(1 for height in course.slots.values() if height > course.head(now)),
        "subscriptions": network.feed.size,
        "failing": faults.failing.calls if faults.failing else 0,
        "delay": round(1000 * faults.crawling.seconds) if faults.crawling else 0,
    }


def _written(chain: Chain, block_hash: bytes) -> str:
    """Write a hash as its family does: a field element has no leading zeros."""
    is_plain = chain.hash_bits == 8 * len(block_hash)
    return "0x" + block_hash.hex() if is_plain else hex(int.from_bytes(block_hash, "big"))


def _mine(context: _Desk, args: Args) -> None:
    blocks = integer(args.get("blocks", 1), "blocks", MAX_BLOCKS_AT_ONCE)
    context.network.do(lambda _, at: Mined(at, blocks), context.now)


def _pause(context: _Desk, _args: Args) -> None:
    context.network.do(lambda _, at: Paused(at), context.now)


def _resume(context: _Desk, _args: Args) -> None:
    context.network.do(lambda _, at: Resumed(at), context.now)


def _reorg(context: _Desk, args: Args) -> None:
    blocks = integer(args.get("blocks", 1), "blocks", DEEPEST_REORG)
    longer = _flag(args, "longer")
    height = integer(args["height"], "height") if "height" in args else None
    name = args.get("branch", "")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise invalid(f"branch is not a string of at most {_LONGEST_NAME} letters")

    def decide(course: Course, at: float) -> Deed:
        head = course.head(at)
        first = head - blocks + 1 if height is None else height
        if first < 1 or head - first >= DEEPEST_REORG:
            raise invalid(f"only the newest {DEEPEST_REORG} blocks can be replaced, and never the first")
        if len(course.chain.forks) >= MAX_FORKS:
            raise RpcError(REFUSED, f"The chain has {MAX_FORKS} forks: start the node again")
        return Reorganised(at, first, longer, name)

    context.network.do(decide, context.now)


def _lag(context: _Desk, args: Args) -> None:
    lag = integer(args.get("blocks", 0), "blocks")
    context.network.syncing = _flag(args, "syncing")
    context.network.lag = lag


def _hold(context: _Desk, args: Args) -> None:
    held = args.get("height", context.network.view(context.now).head)
    context.network.held = integer(held, "height")


def _release(context: _Desk, _args: Args) -> None:
    context.network.held = None


def _fail(context: _Desk, args: Args) -> None:
    calls = integer(args.get("calls", 1), "calls", _MAX_CALLS)
    make = _http_fault(args) if "status" in args else _rpc_fault(args)
    context.faults.failing = _Failing(calls, make, _methods(args)) if calls else None


def _http_fault(args: Args) -> Callable[[], Exception]:
    status = integer(args["status"], "status", 599)
    if status < 400:
        raise invalid("status is not one of an error")
    retry_after = integer(args["retry_after"], "retry_after", _LONGEST_RETRY) if "retry_after" in args else None
    return lambda: HttpFault(status, retry_after)


def _rpc_fault(args: Args) -> Callable[[], Exception]:
    error = mapping(args.get("error", {}), "error")
    code = error.get("code", INTERNAL_ERROR)
    message = error.get("message", "Internal error")
    if not isinstance(code, int) or isinstance(code, bool) or not isinstance(message, str):
        raise invalid("error is not an object with a code and a message")
    data = error.get("data")
    return lambda: RpcError(code, message, data)


def _delay(context: _Desk, args: Args) -> None:
    milliseconds = integer(args["milliseconds"], "milliseconds", _LONGEST_DELAY)
    context.faults.crawling = _Crawling(milliseconds / 1000, _methods(args)) if milliseconds else None


def _methods(args: Args) -> frozenset[str]:
    """Read which methods are meant; none means all."""
    return frozenset(str(name) for name in array(args.get("methods", []), "methods", _MAX_METHODS))


def _flag(args: Args, name: str) -> bool:
    value = args.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name} is not true or false")
    return value


_METHODS: dict[str, tuple[tuple[str, ...], int, Callable[[_Desk, Args], None]]] = {
    "state": ((), 0, lambda *_: None),
    "mine": (("blocks",), 0, _mine),
    "pause": ((), 0, _pause),
    "resume": ((), 0, _resume),
    "reorg": (("blocks", "longer", "height", "branch"), 0, _reorg),
    "lag": (("blocks", "syncing"), 0, _lag),
    "hold": (("height",), 0, _hold),
    "release": ((), 0, _release),
    "fail": (("calls", "status", "error", "methods", "retry_after"), 0, _fail),
    "delay": (("milliseconds", "methods"), 1, _delay),
}
METHODS = tuple(PREFIX + name for name in _METHODS)

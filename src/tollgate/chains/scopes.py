"""Which blocks a call refers to: its block argument or its range, read from the bytes of its parameters.

One reader for each method of a catalogue, made once. A reader never raises: what it cannot read is `UNREADABLE`,
because a node may read it otherwise than we do. Reading only: how answers are kept is in `keeping`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import MsgspecError, Raw, Struct, field
from msgspec.json import Decoder

from tollgate.chains.methods import UNREADABLE, Holds, Look, Method, Scope
from tollgate.core.shapes import Params

Reader = Callable[[Params], Scope]

# Members of an enum are slow to look up in this Python, and readers are on the path of every call.
_NEVER, _TIP, _BLOCK, _FOREVER, _HASH = Holds.NEVER, Holds.TIP, Holds.BLOCK, Holds.FOREVER, Holds.HASH
_RANGE = Holds.RANGE

MAX_NUMBER = (1 << 62) - 1
"""No chain comes here. What is above is a mistake, and would not fit into shared memory."""
# `"0x` and `"`, and as many digits as fit into 64 bits.
_QUANTITY_BYTES = 20
_HASH_CHARACTERS = 66
# A block by its hash, as an object, is shorter.
_KEPT_BYTES, _MAX_KEPT = 128, 64

_UNREADABLE = (MsgspecError, ValueError, RecursionError)
"""What decoding can raise: ValueError for text that is no UTF-8, and for digits that are none."""

_LATEST = "latest"
_TAGS = {
    "eth": {"latest": _TIP, "safe": _TIP, "finalized": _TIP, "earliest": _FOREVER, "pending": _NEVER},
    "starknet": {"latest": _TIP, "l1_accepted": _TIP, "pre_confirmed": _NEVER, "pending": _NEVER},
}


def reader(family: str, method: Method) -> Reader:
    if method.holds is _BLOCK:
        return _eth_block(method) if family == "eth" else _starknet_block(method)
    if method.holds is _RANGE:
        return _eth_range(method) if family == "eth" else _starknet_range(method)
    fixed = Scope(method.holds, method.tip, state=method.state, look=method.look)
    return lambda _params: fixed


def _tagged(name: str, tag: Holds, method: Method) -> Scope:
    """The scope of a call of this method at a tag."""
    if tag is _FOREVER:
        return Scope(tag, False, 0, 0, method.state, method.look)
    # Of the tags only this one shows where the head is.
    look = method.look if name == _LATEST else Look.NOWHERE
    return Scope(tag, True, None, None, method.state, look)


def _tags(family: str, method: Method) -> dict[bytes, Scope]:
    """Scopes by the bytes of the tag; `null` is what an absent argument is."""
    tags = {f'"{name}"'.encode(): _tagged(name, tag, method) for name, tag in _TAGS[family].items()}
    return {**tags, b"null": tags[b'"latest"']}


class _Written(dict[bytes, Scope]):
    """Scopes by how a block is written: tags for good, and those that were read lately, for callers stay at one.

    Bounded: what is long is not kept, and when there are too many all but the tags are forgotten.
    """

    def __init__(self, tags: dict[bytes, Scope], read: Callable[[bytes], Scope]) -> None:
        super().__init__(tags)
        self._tags = tags
        self._read = read

    def __missing__(self, text: bytes) -> Scope:
        scope = self._read(text)
        if len(text) <= _KEPT_BYTES:
            if len(self) >= _MAX_KEPT:
                self.clear()
                self.update(self._tags)
            self[text] = scope
        return scope


# --- eth: a quantity, a tag, a hash, or an object (EIP-1898) ------------------------------------------------


class _Eip1898(Struct):
    number: str | int | None = field(name="blockNumber", default=None)
    hash: str | None = field(name="blockHash", default=None)
    canonical: bool | None = field(name="requireCanonical", default=None)


_eip1898 = Decoder(_Eip1898)
_scalar = Decoder(str | int | None)


def _eth_block(method: Method) -> Reader:
    place, state, look = method.block or 0, method.state, method.look
    tags = _tags("eth", method)
    tip = Raw(b'"latest"')
    latest = tags[bytes(tip)]

    def written(text: bytes) -> Scope:
        if text.startswith((b'"0x', b'"0X')) and len(text) <= _QUANTITY_BYTES:
            try:
                number = int(text[1:-1], 16)
            except ValueError:
                return UNREADABLE
            if number <= MAX_NUMBER and b"_" not in text:
                return Scope(_BLOCK, False, number, number, state, look)
            return UNREADABLE
        return _odd_eth_block(text, method)

    scopes = _Written(tags, written)

    def read(params: Params) -> Scope:
        if not params:
            return latest
        if type(params) is not list:
            return UNREADABLE
        # Most are about the tip, and to make bytes of an argument takes long.
        if len(params) <= place or params[place] == tip:
            return latest
        return scopes[bytes(params[place])]

    return read


def _odd_eth_block(text: bytes, method: Method) -> Scope:
    """What is no plain quantity and no plain tag."""
    try:
        if not text.startswith(b"{"):
            return _eth_end(_scalar.decode(text)).scope(method)
        named = _eip1898.decode(text)
        if (named.hash is None) == (named.number is None):
            return UNREADABLE
        if named.number is not None:
            return _eth_end(named.number).scope(method)
    except _UNREADABLE:
        return UNREADABLE
    # Whether a block is canonical may change with the next one.
    return Scope(_TIP, True, None, None, method.state) if named.canonical else _hashed(method)


def _hashed(method: Method) -> Scope:
    """The scope of a call at a block's hash: an upstream that is behind may not know it yet."""
    return Scope(_HASH, True, None, None, method.state, method.look)


class _End(Struct, frozen=True, gc=False):
    """A block as a call names it: a number, a hash, or a tag."""

    tag: Holds
    number: int | None = None
    name: str = ""
    """Of the tag."""

    def scope(self, method: Method) -> Scope:
        """The scope of a call that names only this block."""
        if self.tag is _BLOCK:
            return Scope(_BLOCK, False, self.number, self.number, method.state, method.look)
        if self.tag is _HASH:
            return _hashed(method) if method.hashes else UNREADABLE
        return _tagged(self.name, self.tag, method)


_HEAD = _End(_TIP, None, _LATEST)


def _eth_end(value: str | int | None) -> _End:
    """A block by a scalar; ValueError where it names none."""
    if value is None:
        return _HEAD
    if isinstance(value, int):
        return _End(_BLOCK, _natural(value))
    name = value.lower()
    tag = _TAGS["eth"].get(name)
    if tag is not None:
        return _End(tag, 0 if tag is _FOREVER else None, name)
    if value[:2] not in ("0x", "0X"):
        raise ValueError(value)
    if len(value) == _HASH_CHARACTERS:
        # geth takes a string of this length for a hash; as a number it would be one that no chain reaches.
        if int(value, 16) <= MAX_NUMBER:
            raise ValueError(value)
        return _End(_HASH)
    # Python would take underscores, which no node does.
    if len(value) > _QUANTITY_BYTES or "_" in value:
        raise ValueError(value)
    return _End(_BLOCK, _natural(int(value, 16)))


def _natural(value: int) -> int:
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError(value)
    return value


class _Logs(Struct):
    start: str | int | None = field(name="fromBlock", default=None)
    stop: str | int | None = field(name="toBlock", default=None)
    block: str | None = field(name="blockHash", default=None)


_logs = Decoder(_Logs)


def _eth_range(method: Method) -> Reader:
    place = method.block or 0

    def read(params: Params) -> Scope:
        if type(params) is not list or len(params) <= place:
            return UNREADABLE
        try:
            logs = _logs.decode(params[place])
            if logs.block is None:
                return _range(_eth_end(logs.start), _eth_end(logs.stop), method)
        except _UNREADABLE:
            return UNREADABLE
        return _hashed(method) if logs.start is None and logs.stop is None else UNREADABLE

    return read


# --- starknet: a tag, or an object with a hash or a number --------------------------------------------------


class _BlockId(Struct):
    block_number: int | None = None
    block_hash: str | None = None


class _Events(Struct):
    from_block: str | _BlockId | None = None
    to_block: str | _BlockId | None = None


_block_id = Decoder(str | _BlockId | None)
_events = Decoder(_Events)
_GENESIS = _End(_BLOCK, 0)


def _argument(params: Params, method: Method) -> Raw | None:
    """The argument of a call that names its block or range; None where it is absent."""
    if not params:
        return None
    if isinstance(params, list):
        place = method.block or 0
        return params[place] if len(params) > place else None
    return params.get(method.member)


def _starknet_block(method: Method) -> Reader:
    tags = _tags("starknet", method)
    latest = tags[b'"latest"']

    def written(text: bytes) -> Scope:
        try:
            end = _starknet_end(_block_id.decode(text))
        except _UNREADABLE:
            return UNREADABLE
        return _hashed(method) if end.tag is _HASH else end.scope(method)

    scopes = _Written(tags, written)

    def read(params: Params) -> Scope:
        raw = _argument(params, method)
        return latest if raw is None else scopes[bytes(raw)]

    return read


def _starknet_end(value: str | _BlockId | None) -> _End:
    """A block by a tag or an object; ValueError where it names none."""
    if value is None:
        return _HEAD
    if isinstance(value, str):
        name = value.lower()
        tag = _TAGS["starknet"].get(name)
        if tag is None:
            raise ValueError(value)
        return _End(tag, None, name)
    if (value.block_number is None) == (value.block_hash is None):
        raise ValueError("a block by number or by hash")
    return _End(_HASH) if value.block_number is None else _End(_BLOCK, _natural(value.block_number))


def _starknet_range(method: Method) -> Reader:
    def read(params: Params) -> Scope:
        raw = _argument(params, method)
        if raw is None:
            return UNREADABLE
        try:
            events = _events.decode(raw)
            start = _GENESIS if events.from_block is None else _starknet_end(events.from_block)
            stop = _starknet_end(events.to_block)
        except _UNREADABLE:
            return UNREADABLE
        if stop.tag is _HASH and start.tag in (_HASH, _BLOCK):
            # A hash fixes all blocks below it too.
            return Scope(_HASH, True, None, start.number, method.state)
        return _range(start, stop, method)

    return read


# --- Both ---------------------------------------------------------------------------------------------------


def _range(start: _End, stop: _End, method: Method) -> Scope:
    """The scope of a call that names the blocks from here to there."""
    first, last = start.number, stop.number
    if first is not None and last is not None:
        # Upside down is an error of some nodes, and nothing at others.
        holds = _RANGE if first <= last else _NEVER
        return Scope(holds, False, max(first, last), min(first, last), method.state)
    named = last if first is None else first
    if _NEVER in (start.tag, stop.tag):
        return Scope(_NEVER, True, named, named, method.state)
    if _TIP in (start.tag, stop.tag):
        return Scope(_TIP, True, named, named, method.state)
    # From a hash to a number.
    return UNREADABLE if last is None else Scope(_RANGE, True, last, None, method.state)


def readers(family: str, methods: Iterable[Method]) -> dict[str, Reader]:
    return {method.name: reader(family, method) for method in methods}

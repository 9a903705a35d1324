"""How long an answer may be kept, and which block it shows its node to have.

Answers are not decoded: at most one member of the outermost object is, and the rest is skipped. (A search for
`"blockNumber":` in the bytes would do less, but a member of that name may be nested deeper.) No clock here.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder

from tollgate.chains.methods import Holds, Keep, Look, Scope
from tollgate.chains.scopes import MAX_NUMBER

_NEVER, _TIP, _BLOCK, _FOREVER, _HASH = Holds.NEVER, Holds.TIP, Holds.BLOCK, Holds.FOREVER, Holds.HASH
_MINED = Holds.MINED
_NOWHERE, _FINALITY = Look.NOWHERE, Look.FINALITY

_NOT = Keep(_NEVER)
_FOR_THE_TIP = Keep(_TIP)
_FOR_EVER = Keep(_FOREVER)

# Longer answers hold something.
_EMPTY_BYTES = 64
_EMPTY_STRING_BYTES = 4
_BLANK = b" \t\r\n"
_EMPTY = frozenset((b"[]", b"{}", b'""', b'"0x"'))
_NO_EVENTS = b'{"events":[]'

_UNREADABLE = (MsgspecError, ValueError, RecursionError)


class _Header(Struct):
    number: str | int | None = None


class _InBlock(Struct):
    blockNumber: str | int | None = None  # noqa: N815


class _Accepted(Struct):
    block_number: int | None = None
    block_hash: str | None = None
    status: str | None = None
    finality_status: str | None = None


_header = Decoder(_Header)
_in_block: Decoder[_InBlock | list[_InBlock]] = Decoder(_InBlock | list[_InBlock])
_accepted = Decoder(_Accepted)
_value = Decoder(str | int)


def keep(scope: Scope, result: bytes, head: int, finalized: int) -> Keep:
    """How this answer to a call may be kept, where the chain's head and the newest final block are known."""
    holds = scope.holds
    if holds is _NEVER:
        return _NOT
    number = scope.number
    if number is not None and number > head:
        return _NOT
    # Most short answers are strings, and need not be looked at any closer.
    if result[:1] == b'"':
        if len(result) <= _EMPTY_STRING_BYTES and result in _EMPTY:
            return _NOT if holds is _MINED else _FOR_THE_TIP
    elif len(result) <= _EMPTY_BYTES:
        text = result.translate(None, _BLANK)
        if text in (b"null", b""):
            return _NOT
        if text in _EMPTY or text.startswith(_NO_EVENTS):
            return _NOT if holds is _MINED else _FOR_THE_TIP
    if holds is _TIP:
        return _FOR_THE_TIP
    if scope.look is not _NOWHERE and (holds is not _BLOCK or scope.look is _FINALITY):
        return _looked(scope, result, head, finalized)
    if number is None:
        return _NOT if holds is _MINED else _FOR_EVER
    if holds is _FOREVER or holds is _HASH or number <= finalized:
        return Keep(_FOREVER, number)
    return Keep(_BLOCK, number)


def _looked(scope: Scope, result: Raw | bytes, head: int, finalized: int) -> Keep:
    """The same where the answer itself names its block."""
    if scope.look is _FINALITY:
        return _final(result, head, finalized)
    number = _number(scope.look, result)
    if number is None:
        return _FOR_EVER if scope.holds is _HASH else _NOT
    if number > head:
        return _NOT
    if scope.holds is _FOREVER and number > 0:
        # A node without old history calls its oldest block `earliest`, and that moves.
        return _FOR_THE_TIP
    if scope.holds is not _MINED or number <= finalized:
        return Keep(_FOREVER, number)
    return Keep(_BLOCK, number)


def _final(result: Raw | bytes, head: int, finalized: int) -> Keep:
    """The same for a block or a receipt of `starknet`, whose status is part of the answer and changes once."""
    try:
        answer = _accepted.decode(result)
    except _UNREADABLE:
        return _NOT
    number, status = answer.block_number, answer.status or answer.finality_status
    if number is None or answer.block_hash is None or not 0 <= number <= head:
        return _NOT
    if status == "ACCEPTED_ON_L1":
        return Keep(_FOREVER if number <= finalized else _BLOCK, number)
    return _FOR_THE_TIP if status == "ACCEPTED_ON_L2" else _NOT


def revealed(scope: Scope, result: Raw | bytes) -> int | None:
    """The number of its node's newest block, where this is an answer about `latest` that shows it."""
    if scope.holds is not _TIP or scope.look is _NOWHERE:
        return None
    return _number(scope.look, result)


def _number(look: Look, result: Raw | bytes) -> int | None:
    """The block that an answer names; None where it names none."""
    try:
        return _natural(_LOOKS[look](result))
    except _UNREADABLE:
        return None


def _natural(value: str | int | None) -> int | None:
    if isinstance(value, str):
        value = int(value, 16) if value.startswith("0x") else None
    return value if value is not None and 0 <= value <= MAX_NUMBER else None


def _first_block(result: Raw | bytes) -> str | int | None:
    found = _in_block.decode(result)
    if isinstance(found, list):
        return found[0].blockNumber if found else None
    return found.blockNumber


def _accepted_block(result: Raw | bytes) -> int | None:
    found = _accepted.decode(result)
    # Without a hash it is the block that is still being built.
    return found.block_number if found.block_hash is not None else None


_LOOKS: dict[Look, Callable[[Raw | bytes], str | int | None]] = {
    Look.VALUE: _value.decode,
    Look.HEADER: lambda result: _header.decode(result).number,
    Look.MINED: _first_block,
    Look.FINALITY: _accepted_block,
}

"""The shapes of JSON-RPC messages, as msgspec reads them. Data only; `jsonrpc.py` has the grammar.

Nearly every call has an integer id, and for those msgspec does all the checking: they are `PlainCall`s, used as
they are read. Any other call is read with more care into a `WrittenCall`, which keeps its id as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

ABSENT = Raw(b"")

Params = list[Raw] | dict[str, Raw] | None


class PlainCall(Struct, gc=False):
    """A call with an integer id."""

    jsonrpc: Literal["2.0"]
    id: int
    method: Annotated[str, Meta(min_length=1)]
    params: Params = None


class WrittenCall(Struct, frozen=True, gc=False):
    """A call with another id, or without one (a notification); or a member of a batch that is no call."""

    method: str
    params: Params
    id: Raw | None
    problem: str = ""
    """Why it is no call, where it is none."""


Call = PlainCall | WrittenCall


class SentCall(Struct, gc=False):
    """A call as it goes to a node."""

    jsonrpc: str
    id: Raw | int
    method: str
    params: list[Raw] | dict[str, Raw]


class AnyCall(Struct, gc=False):
    """A call with any id, which is still to be looked at."""

    jsonrpc: Literal["2.0"]
    method: Annotated[str, Meta(min_length=1)]
    params: Params = None
    id: Raw = ABSENT


class LooseCall(Struct, gc=False):
    """An object that may be a call, to report what is wrong with it."""

    jsonrpc: Raw = ABSENT
    method: Raw = ABSENT
    params: Raw = ABSENT
    id: Raw = ABSENT


class Reply(Struct, gc=False):
    """A node's answer to one call: a result or an error."""

    result: Raw = ABSENT
    error: Raw = ABSENT

    @property
    def failed(self) -> bool:
        """Whether it is an error."""
        return self.error is not ABSENT


class ErrorCode(Struct, gc=False):
    """What is read of a node's error: its code."""

    code: int


class ErrorMessage(Struct, gc=False):
    """What is read of a node's error to understand it."""

    code: int
    message: str = ""


class NumberedReply(Reply, gc=False):
    """A reply to a call of a batch, under the number that we gave it."""

    id: int = -1


class Replies(Struct, gc=False):
    """A node's answers to a batch, in the order of the calls."""

    items: Sequence[Reply]
    all_results: bool
    """Whether none of them is an error."""


class Result(Struct, gc=False):
    """An answer to a caller: a node's result under the caller's id."""

    jsonrpc: str
    id: Raw | int
    result: Raw


class ErrorAnswer(Struct, gc=False):
    """An answer to a caller: a node's error under the caller's id."""

    jsonrpc: str
    id: Raw | int
    error: Raw

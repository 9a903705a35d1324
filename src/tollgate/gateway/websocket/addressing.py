"""Refusals under the ids of the calls that they answer.

Pure. What is refused before it is read (caps, rates, credentials) has no id. On HTTP its place shows what it
answers; on a WebSocket a client would wait for ever.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from tollgate.core import jsonrpc
from tollgate.core.shapes import Reply
from tollgate.errors import Refusal
from tollgate.gateway.messages import Answer

# Whole requests that are refused have such a status.
_REFUSED = 400
# Calls of a refused batch that are answered one by one; a larger one is refused for its size.
_MAX_ADDRESSED = 10_000


class _Refused(Struct):
    error: Raw
    id: Raw


_refused = msgspec.json.Decoder(_Refused).decode


def addressed(body: bytes, answer: Answer) -> bytes:
    """The answer to a message under the ids of its calls."""
    if answer.status < _REFUSED:
        return answer.body
    refused = _refused(answer.body)
    if bytes(refused.id) != b"null":
        return answer.body
    try:
        parsed = jsonrpc.parse(body, _MAX_ADDRESSED)
    except Refusal:
        return answer.body
    calls = parsed if isinstance(parsed, list) else [parsed]
    reply = Reply(error=refused.error)
    written = [jsonrpc.encode_answer(call.id, reply) for call in calls if call.id is not None]
    # Notifications have no answer, and nothing is not an empty list (JSON-RPC 2.0, section 6).
    return b"[%b]" % b",".join(written) if isinstance(parsed, list) and written else b"".join(written)

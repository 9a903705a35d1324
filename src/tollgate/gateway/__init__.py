"""The data plane: one request under `/x/`, top to bottom.

edge         the fast lane: uvicorn protocol for /x/; framing, pipelining, deadlines of a connection
lane         what all connections of a worker share
intake       method, path, media type, size: what can be refused before the body is read
cors         preflight and headers
credentials  token or Origin -> Caller, from a directory in memory kept fresh by revisions
directory    that directory: filled on a miss, bounded, dropped by revision
admission    caps, rate limits, load shedding
caller       a grant made ready for the hot path
pipeline     the request in one short function
flight       runs a request's coroutine without a task
routing      upstreams in order of preference
exchange     attempts at upstreams until one answers, within a deadline
transport    pooled HTTP/1.1 client to upstreams; the only opener of sockets
wire         one connection of that pool: bytes in, responses out
respond      reply or error -> status, headers, body
record       what became of a call -> metrics
journal      one record for the ledger of each request of a known team, before its answer leaves
messages     Request and Answer, the values that the steps hand on
budget       the bound on bytes held in large bodies

No framework, no ORM, no database access for a request that is known.
"""

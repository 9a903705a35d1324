"""The data plane: one request under `/x/`, top to bottom.

edge         the fast lane: uvicorn protocol for /x/; framing, pipelining, deadlines of a connection
again        a head that is that of the request before
lane         what all connections of a worker share
intake       method, path, media type, size: what can be refused before the body is read
cors         preflight and headers
credentials  token or Origin -> Caller, from a directory in memory kept fresh by revisions
directory    that directory: filled on a miss, bounded, dropped by revision
admission    caps, rate limits, load shedding
caller       a grant made ready for the hot path
pipeline     the request in one short function
flight       runs a request's coroutine without a task
inquiries    one answer: from memory, from a question under way, from upstreams
batches      those of a batch: split, sent on as batches, told in order
cache        what is kept, for as long as the board says that it holds
course       the attempts at a call, decided; routing: whom to ask; peers: what a worker knows of an upstream
exchange     makes those attempts; race: several at once, and hedges within a budget
writes       transactions; logs, ranges: wide `eth_getLogs`; pinned: filters and continuation tokens
transport    pooled HTTP/1.1 client to upstreams; with listener and pending the only opener of sockets
wire         one connection of that pool: bytes in, responses out
respond      reply or error -> status, headers, body
record       what became of a call -> metrics
journal      one record for the ledger of each request of a known team, before its answer leaves
networks     all of that for the networks of a worker, changed in place by a reload
messages     Request and Answer, the values that the steps hand on
budget       the bound on bytes held in large bodies

sockets/     WebSockets on the same addresses: who may open one, calls and answers, subscriptions
feeds/       blocks made into notifications, once and in order
probing/     the prober's own, in its own process
listener     hears from one upstream by WebSocket, for the prober and for pending transactions

No framework, no ORM, no database access for a request that is known.
"""

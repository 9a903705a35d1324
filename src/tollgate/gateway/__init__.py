"""The data plane: one request under `/x/`, from a caller's connection to an upstream's and back.

A healthy call takes the fast path: `http/connection` -> `call/call` -> `upstream/connection` and back, by plain
calls on one object. Where that ends, the same object goes on over `call/resolver` and `upstream/attempts`.

http/        a caller's connection, request, response, CORS; what all connections of a worker share
access/      credentials, the directory of grants, limits
call/        calls and batches of callers; the order of checks; the resolver with cache and single flight
upstream/    connection, pool, health, choice, failover, attempts, sticky routing, broadcast, log ranges
recording/   one record of each request for the ledger, before its answer leaves; counters
websocket/   sockets and their subscriptions
feeds/       blocks made into notifications, once and in order
prober/      heads, finality and health in the background, in a process of its own
messages     Request and Answer, the values that the steps hand on
tracing      spans of requests and attempts, where tracing is on
memory_budget  the bound on bytes held in large bodies

No framework, no ORM, no database access for a caller that is known.
"""

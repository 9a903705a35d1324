"""Upstreams: which to call, how, and what to do when that fails.

connection  one HTTP/1.1 connection: a request out, a parsed response to its receiver
pool        connections to one upstream
waiters     requests that wait for one, by caller
health      how fast an upstream is, how it fails, its circuit breaker
choice      the upstream to call: in rotation, far enough, by priority, of equals the cheaper of two
failover    the policy: which upstream is next, for how long, when to pause or give up
attempts    the state machine that acts on it: all attempts at a call, batch or transaction
exchange    what the calls of a network share: view, rates, hedge budget, statistics
sticky      filters and continuation tokens that live on one upstream
broadcast   transactions
get_logs    wide `eth_getLogs`, in parts
listener    receives new heads from one upstream by WebSocket
"""

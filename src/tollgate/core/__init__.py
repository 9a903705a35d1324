"""The pure rules. No async, socket, file, clock or database in here: `now` is an argument.

health     the state of each upstream, from what was seen of all
branches   which chain a network is on
jsonrpc    bytes <-> calls and replies; ids byte for byte
shapes     JSON-RPC messages as msgspec reads them
secrets    format, checksum and digest of tokens and what else we hand out
origins    Origin header -> host; root-domain rules; label match
addresses  client addresses behind trusted proxies;  address_shares: how much of something an address may have
limits     GCRA arithmetic;  leases: limits that several nodes share
methods    method names against patterns, and lists of them
models     Team, Token, Domain (frozen)
people     Account, Login, Member, Invitation, AuditEntry and the like (frozen)
roles      who may do what in a team
totp       codes of authenticator apps
audit_chain  the hashes that link the entries of an audit log
nodes      nodes of an installation, their roles, and leases of jobs
months     months of UTC
entries    one answered request, as the spool has it
posting    from entries to usage and money;  latencies: histograms of durations
blocks     records of a team as the ledger stores them;  shared_blocks: those of many small teams
zstandard  how they are compressed
clock      whether the clock can be believed
pricing    the price list
upstreams  what `tollgate upstreams` shows;  upstream_history: their last day
cursors    where a page of a list ended
sealed     opaque texts that callers bring back, and can neither read nor change
logs       request logs: an entry, a filter, a slice
usage      what a team used in a month, and the forecast
invoices   what was used and charged as lines that add up, and what is reported of it to a payment service
alerts     when an alert about spending is due, and how it is signed
durations  30m, 1h, 24h
"""

"""The pure rules. No async, socket, file, clock or database in here: `now` is an argument.

jsonrpc    bytes <-> calls and replies; ids byte for byte
shapes     JSON-RPC messages as msgspec reads them
secrets    token format, checksum, digest
origins    Origin header -> host; root-domain rules; label match
addresses  client addresses behind trusted proxies
limits     GCRA arithmetic
methods    method names against patterns and the never-forwarded prefixes
models     Team, Token, Domain (frozen)
"""

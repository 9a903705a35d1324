"""A caller's connection: bytes into requests, answers into bytes.

connection         one connection: order of answers, calls whose head is known
framing            bytes into whole requests; the target of the HTTP parser
asgi_bridge        what uvicorn serves: paths outside `/x/`, WebSocket handshakes
bounds             what a connection may hold, and how long it may wait
known_heads        heads that a connection has sent before
request            method, path, media type, size: what is refused before the body is read
response           answers as HTTP
cors               preflight and headers
handshake          the head of a request that wants to become a WebSocket
tls_connection     a connection whose TLS handshake is under way
worker_context     what all connections of a worker share
outbox             requests and answers of a loop iteration, which leave together
under_way          calls and requests under way; protocols between a call and its connection
connection_counts  connections by client address
"""

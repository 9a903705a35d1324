"""A caller's connection: bytes into requests, answers into bytes.

connection      uvicorn protocol for `/x/`: framing, order of answers, deadlines, graceful stop
known_heads     heads that a connection has sent before
request         method, path, media type, size: what is refused before the body is read
response        answers as HTTP
cors            preflight and headers
handshake       the head of a request that wants to become a WebSocket
tls_connection  a connection whose TLS handshake is under way
worker_context  what all connections of a worker share: bounds, outbox, late calls, the end
"""

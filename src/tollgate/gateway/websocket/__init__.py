"""WebSockets on the addresses of the networks.

connection     the protocol: one caller's connection, on `websockets`
endpoint       who may open one, how many, and how a refusal is answered
grants         who loses its grant, and with it its connections
session        calls and answers on it, recorded and billed as over HTTP
subscriptions  its subscriptions
outbox         what waits for a client, within a bound
"""

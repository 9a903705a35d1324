"""WebSockets on the addresses of the networks.

handshake     what an upgrade must look like to be one
connection    the protocol: one caller's connection, on `websockets`
entrance      who may open one, how many, and how a refusal is told
grants        who loses its grant, and with it its connections
conversation  calls and answers on it, recorded and billed as over HTTP
desk          its subscriptions
addressing    refusals under the ids of the calls that they answer
outbox        what waits for a client, within a bound
"""

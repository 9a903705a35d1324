"""WebSockets on the addresses of the networks.

handshake     what an upgrade must look like to be one
connection    the protocol: one caller's connection, on `websockets`
entrance      who may open one, and who is shown out again
conversation  calls and answers on it, recorded and billed as over HTTP
desk          its subscriptions
"""

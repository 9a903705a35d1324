"""The whole service on one machine, with nothing to install: `tollgate demo`; and its simulated node by itself.

run             puts it together: a data folder, a filled team, the service, the simulated node
node            the simulated node as an ASGI application; `alone` is its command, for tests
framing         JSON-RPC bodies; `session` a WebSocket connection, `ws_protocol` what uvicorn lacks for it
control         the `demo_…` methods: lag, reorganisations, faults, delays
network         one network of one node: its chain, its lag, its subscribers (`feed`)
course          what is done to a chain; `journal` keeps it, in a file where several nodes share the chain
chain           heights, times and hashes of the simulated chains, all derived, nothing stored
eth, starknet   the methods of each family, with their shapes, state, blocks, logs and feeds beside them
"""

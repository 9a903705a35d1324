"""The whole service on one machine, with nothing to install: `tollgate demo`.

run             puts it together: a data folder, a filled team, the service, the simulated node
node            the simulated node: JSON-RPC over HTTP
chain           heights, times and hashes of the simulated chains, all derived, nothing stored
eth, starknet   the methods of each family, with their shapes, state, blocks and logs beside them
"""

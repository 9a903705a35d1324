"""The whole service on one machine, with nothing to install: `tollgate demo`.

run             puts it together: a data folder, a filled team, the service, the simulated node
fill, history   the team: its account and tokens, and its last weeks
node            the simulated node: JSON-RPC over HTTP and WebSocket for all simulated networks
starknet_feed   subscriptions of one WebSocket to a Starknet network
starknet_params, starknet_sent, starknet_traces    its block ids, what callers submit, and its traces
…_methods       the methods of each family, eth and starknet: how each reads its parameters, what it answers
…_shapes        their blocks, transactions, receipts, logs and events as JSON
…_state         their balances, nonces, contracts and calls
network         one simulated network at one moment, and the transactions submitted to it
chain           heights, times, hashes and accounts of the simulated chains: all derived, nothing stored
params          reading the parameters of a call
"""

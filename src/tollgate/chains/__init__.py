"""What each family's methods, answers, errors and blocks mean. Pure: no socket, no clock, no settings.

methods    the types: what a method does and takes, how long answers hold, what a call refers to
eth        the methods of `eth`, as a table
starknet   the methods of `starknet`, as a table
starknet_versions    what differs between the versions of its specification, as a table
scopes     which blocks a call refers to, read from its parameters
keeping    how an answer may be kept, and which head it shows
catalogue  all of that for one family, and which names steer a node
access     which methods callers may call on a network
contracts  which contracts a call reads, for tokens that may read some only
faults     what an error of a node means (`fault_rules`: the table)
heads      head, finality, chain id and syncing: what to call, and how to read it

subscriptions, subscriptions_eth, subscriptions_starknet    subscriptions and their notifications
"""

"""What each family's methods, answers, errors and blocks mean. Pure: no socket, no clock, no settings.

methods    the types: kinds of methods, how long answers hold, what a call refers to
eth        the methods of `eth`, as a table
starknet   the methods of `starknet`, as a table
scopes     which blocks a call refers to, read from its parameters
keeping    how an answer may be kept, and which head it shows
catalogue  all of that for one family
faults     what an error of a node means (`fault_rules`: the table)
heads      head, finality, chain id and syncing: what to call, and how to read it

subscriptions, subscriptions_eth, subscriptions_starknet    subscriptions and their notifications
"""

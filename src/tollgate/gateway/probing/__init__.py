"""The prober's own, in a process of its own: it writes the board, workers read it.

watch    one network: whose word counts, where its head is, when to look again
watched  one upstream: what it said last, and what state that makes
prober   asks an upstream for head, finality and chain id
trunk    the chain that upstreams agree on, as far back as it may change
display  what is shown of all that to operators
"""

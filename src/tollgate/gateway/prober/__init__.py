"""The prober's own, in a process of its own: it writes the board, workers read it.

watch      one network: whose word counts, and when to look again
watched    one upstream: what it said last, and what state that makes
following  one network's chain: whom it follows, and what is told of its head, finality and reorganisations
prober     asks an upstream for head, finality and chain id
trunk      the chain that upstreams agree on, as far back as it may change
display    what is shown of all that to operators
"""

"""Health of upstreams, probed in a process of its own: it writes the shared status, workers read it.

network_monitor  one network: which upstreams count, and when to probe again
upstream_monitor one upstream: its last answer, and the state that follows
head_follower    one network's chain: which upstream is followed; head, finality and reorganisations
prober           queries an upstream for head, finality and chain id
examine          examines an upstream before it is used
publish          what operators see of all that
"""

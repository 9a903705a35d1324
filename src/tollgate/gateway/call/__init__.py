"""One call or batch, from a parsed body to its answer.

call              one call of a caller: the fast path, the slow path, the answer, the record
batch             the same for a batch
served            what both have in common
admission         what is known of a caller once it was let in; what a method means on one network
pipeline          the order of checks; refusals and rendering
resolution        one call on its way to its answer: an equal call under way, or attempts at upstreams
batch_resolution  the calls of a batch: split, sent, answered in order
resolver          what the calls of one network share: cache, single flight, methods
reply_validator   what a node's reply means, and whether it fits the chain that callers know
cache             answers, for as long as they hold
shared_answers    answers about final blocks, exchanged with workers of other nodes
networks          all of that for the networks of a worker, changed in place by a reload
"""

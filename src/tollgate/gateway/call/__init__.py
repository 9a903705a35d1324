"""One call or batch, from a parsed body to its answer.

straight        the healthy call: decided, sent and answered by plain calls
straight_batch  the same for a batch
straight_calls  lets callers in and begins their calls
admission       what a connection has shown once
method_plan     what a method means on one network
pipeline        the general way of a request, as a ladder of checks
batch           the calls of a batch: split, sent on, answered in order
resolver        one answer: from the cache, from an equal call under way, from upstreams
cache           answers, for as long as they hold
shared_answers  answers about final blocks, exchanged with workers of other nodes
networks        all of that for the networks of a worker, changed in place by a reload
"""

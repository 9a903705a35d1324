"""Blocks made into notifications, once and in order.

feed       one for each network: follows the head, tells the audience
walker     from the last block told to the head, without a gap, back to the common ancestor where there was a fork
trail      the blocks that were told, as far as a reorganisation may reach
latecomer  what a subscription from an older block has missed
audience   who listens, to what; within bounds
source     where blocks come from, as the feed sees it; fetching: by HTTP, from the network's upstreams
statuses   transactions, and pending: what is not in blocks
"""

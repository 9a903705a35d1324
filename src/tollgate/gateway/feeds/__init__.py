"""Blocks made into notifications, once and in order.

feed         one for each network: follows the head, notifies its subscribers
follower     from the last block notified to the head, without a gap, back to the common ancestor after a fork
history      the blocks that subscribers were notified of, as far as a reorganisation may reach
catch_up     what a subscription from an older block has missed
subscribers  who subscribes to what, by an index of filters, within bounds
source       where blocks come from, as the feed sees it; fetcher: by HTTP, from the network's upstreams
statuses     transactions and their states; pending: transactions that are not in a block yet
"""

"""Who calls, and how much they may.

credentials  token or Origin -> Caller, from memory or from the store
directory    grants in memory, kept fresh by revisions
caller       a grant made ready for the hot path
limits       spending caps and rate limits
"""

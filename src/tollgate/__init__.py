"""Tollgate: a blockchain RPC access service that anyone can host."""

__version__ = "0.1.0"

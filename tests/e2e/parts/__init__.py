"""Test equipment for the end-to-end tests: real programs, started, driven and stopped.

From the ground up:

    need       where each program is; fails loudly when one is missing
    ports      free loopback ports
    processes  starts a program, waits until it is ready, stops it; the only place that polls
    certs      a certificate authority and a server certificate for the test's own names
    toxiproxy  spoils connections
    anvil      a local Ethereum chain
    anvils     several of them with one chain, mined when the test decides
    node       runs a JavaScript client of tests/e2e/clients, to its end or beside the test
    pyclients  runs a Python client of tests/e2e/clients in its own environment, to its end or beside the test
    nginx      nginx with a given configuration, and with TLS and HTTP/2 in front of an upstream
    browser    Chromium, and pages on any host name that it can open
    raw_http   an HTTP/1.1 client that hides nothing
    upstream   a scripted node: what it answers to each method, and how badly
    load       callers that go on and on, and what became of every request
    reads      callers that follow a chain of `anvils`, and what they were answered
    starknet   Starknet nodes with one chain, mined when the test decides
    tollgate   a real `tollgate serve` or `demo`, and its books
    stack      a gateway, a scripted node behind it, a team with a token
    filled     a gateway filled for tests of refusals
    faults     a gateway before several nodes, and their faults

A part knows nothing of Tollgate, the last five aside: what a test expects of it stays in the test.
"""

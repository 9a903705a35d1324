"""What a call costs: Tollgate beside nginx and beside no gateway at all, in one run on one machine.

Run by `make bench`, or `python -m bench` from the root of the repository. Linux, nginx and wrk are needed.
The measured worker has one core to itself; wrk, the stub upstream and Tollgate's other processes share another.
Timings never decide the exit code: it is 1 only when something did not run, or answered with errors.

    __main__.py     options, and the order of a run
    plan.py         the cases: bodies, connections, rounds
    processes.py    start, pin, weigh and stop processes, by pid
    nginx.py        the stub upstream and the proxy to compare with
    gateway.py      Tollgate as a real process, over a store with n tokens
    seed.py         fills that store; the only file that knows it
    load.py         one wrk run (`post.lua`), and a look at one answer before it
    rounds.py       interleaved rounds -> medians and their spread
    cache.py        shows that hits were hits and misses were misses
    slices.py       a worker that records in every other slice of time (`halves.py`): what that costs
    scale.py        100,000 tokens against 10; memory with 2,000 connections (`crowd.py` holds them)
    goals.py        PURE: figures -> reached or missed
    report.py       the tables and the JSON file;  machine.py has where it was measured
    logs.py         pages of request logs from a ledger with millions of rows: `python -m bench --logs 10000000`
    ledger.py       what recording adds to a call; how fast the collector is: `python -m bench --ledger`
    instructions.py instructions, frames, files and tasks of each of `cases.py`, in process (`drive.py`):
                    `python -m bench --instructions`
    compare.py      two result files side by side: `python -m bench.compare OLD NEW`
"""

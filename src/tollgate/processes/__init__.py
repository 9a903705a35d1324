"""The processes of the service, and the composition roots: the only modules that name concrete backends.

service        `run`: sockets and shared memory made in the parent, then one supervisor for all children
bootstrap      what the parent makes before it forks: data folder, migrated databases, the pepper
preflight      whether a service could start, without starting it; what it should be warned of
process_metrics  what each process uses
certificates   TLS: loaded again when its files change; expiry
backup         a copy that can be started elsewhere, taken while the service runs
supervisor     starts the children, replaces one that ends or hangs, stops them all
worker         one gateway process: answers `/x/`, forwards the rest
control        the process of the control plane
control_proxy  from a worker to the control process, over a Unix socket
collector      the process that brings spooled records into the ledger
prober         the process that monitors upstreams
leases         the process that exchanges shared limits with Valkey
node           the sign of life of a node that shares its database with others
serving        one uvicorn server inside a child: loop, signals, end
listeners      sockets that the parent binds
status         `/healthz`, `/readyz`, and the app of the metrics port
trace_export   spans of a worker to an OTLP receiver
metrics_page   `/metrics` in Prometheus' format
shared_settings  settings that all processes share, and how each follows a change
reloader       SIGHUP: reads the settings again, and hands them on
service_lock   one service for one data folder
run_in_child   a function in a forked child, for what the parent must not import
"""

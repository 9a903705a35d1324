"""The command-line tool: Click commands, each loaded only when it is called.

main           the `tollgate` command, its tree, and failures -> exit codes
lazy           groups that import a command when it is called
options        what commands share: --team, --json, --yes, pages, parameter types
failures       how a command can end, and its exit code

For teams, as clients of the management API:
auth           `auth login|status|logout|token`
teams          `teams create|list|show|rename|join`, `audit`
members        `teams members …`, `teams invitations …`
rpc_tokens     `rpc tokens …`
rpc_whitelist  `rpc whitelist …`
rpc_logs       `rpc logs`
rpc_call       `rpc call`, `rpc networks`, `api`
usage          `usage …`, `invoices …`
account        `account show|password`, `account tokens …`
completion     `completion bash|zsh|fish`
open           `open`: a page of the console

Shared by these, imported only when a command runs:
session        which server, login and team; printing of resources and pages
client         the typed client: routes and bodies
login          the credential in use, and its renewal
device         the device login (RFC 8628)
answers        bytes of an answer -> value or failure
shapes         types of answers
transport      HTTP through urllib3: deadlines and bounds
credentials    where logins and defaults are stored: files, system keyring
address        addresses of servers
show           tables, fields, JSON, messages

For the operator:
init           `init`: settings, first account and team
upstream_checks  results of testing upstreams: table and problems
serve          `serve`, `migrate`, `collect` and `nodes`
reload         `reload`: apply changed settings without a restart
backup         `backup` and `restore`
config         `config check` and `config show`
doctor         `doctor`: whether spool, logs, usage and invoices agree
upstreams      `upstreams`: which are in rotation, and why
demo           `demo`: the whole service on one machine, with a simulated chain
admin          `admin …`: accounts and teams, on the store
operator       `operator …`: the whole service, over the API
"""

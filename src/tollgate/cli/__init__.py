"""The command-line tool: Click commands, each loaded only when it is called.

main           the `tollgate` command, its tree, and failures -> exit codes
lazy           groups that import a command when it is called
options        what commands share: --team, --json, --yes, pages, kinds of values
failures       how a command can end, and its exit code

For teams, as clients of the management API:
auth           `auth login|status|logout|token`
teams          `teams create|list|show|rename|join`
members        `teams members …`, `teams invitations …`
rpc_tokens     `rpc tokens …`
rpc_whitelist  `rpc whitelist …`
audit          `audit`
account        `account show|password`, `account tokens …`
completion     `completion bash|zsh|fish`

What these stand on, imported only when one runs:
session        which server, login and team; printing of things and pages
client         the typed client: routes and bodies
login          the credential in use, and its renewal
device         the device login (RFC 8628)
answers        bytes of an answer -> value or failure
shapes         what the API answers, as values
transport      HTTP through urllib3: deadlines and bounds
keep, vault    where logins and choices are kept: files, system keyring
address        addresses of servers
show           tables, fields, JSON, words

For the operator:
serve          `serve` and `migrate`
reload         `reload`: changed settings, in place
config         `config check` and `config show`
demo           `demo`: the whole service on one machine, with a simulated chain
admin          `admin …`: accounts

reference      the page of all commands for docs/, made from the tree
"""

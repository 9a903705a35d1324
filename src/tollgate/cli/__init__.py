"""The command-line tool: Click commands, each loaded only when it is called.

main     the `tollgate` command and its lazy sub-commands
serve    `serve` and `migrate`, for the operator
config   `config check` and `config show`
demo     `demo`: the whole service on one machine, with a simulated chain
"""

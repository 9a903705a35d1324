"""The console: server-rendered pages that work without JavaScript wherever that is possible.

pages        all pages as one router; the style guide of the demo; the service's root
frame        navigation, team switcher, title: the frame of every page behind sign-in
home         the start page; all teams, and a new one
overview     a team's month at a glance
endpoints    addresses, snippets, first call, playground
tokens, domains, logs, tail, usage, team, account, operator    one file for each resource
factors      codes of an app and passkeys
charts       SVG, drawn here
snippets     code to paste
style/       the style sheet, the script, the favicon
sign_in, invitations, device, provider    signing in
session      the session cookie: from a request to its actor
forms        parsing forms, and their errors
errors       error pages
render       templates and assets
paths        how pages are registered; unknown paths and methods
safety       headers, allowed origins of forms, allowed targets of redirects

A page parses, calls services and renders. Rules of accounts, teams and logins must not enter.
"""

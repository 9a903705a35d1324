"""The console: server-rendered pages that work without JavaScript wherever that is possible.

pages        all pages as one router; the service's root, the start page, error pages; the style guide of the demo
frame        navigation, team switcher, title: the frame of every page behind sign-in
overview     a team's month at a glance
endpoints    addresses, code to paste, first call, playground
tokens, domains, logs, tail, usage, team, account, operator    one file for each resource
factors      codes of an app and passkeys
charts       SVG, drawn here
style/       the style sheet, the script, the favicon
sign_in, provider    signing in, invitations
session      the session cookie: from a request to its actor
forms        parsing forms, and their errors
render       templates and assets
paths        how pages are registered; unknown paths and methods
safety       headers, allowed origins of forms, allowed targets of redirects

A page parses, calls services and renders. Rules of accounts, teams and logins must not enter.
"""

"""The console: server-rendered pages that work without JavaScript wherever that is possible.

pages        all of it as one router; the look's parts, in the demo; the address of the service itself
frame        navigation, team switcher, title: what every page of somebody who is signed in stands in
home         where one arrives; all teams, and a new one
overview     a team's month at a glance
endpoints    addresses, snippets, first call, playground
tokens, domains, logs, tail, usage, team, account, operator    one file for each thing that is managed
factors      codes of an app and passkeys
charts       SVG, drawn here
snippets     code to paste
style/       the style sheet, the script, the favicon
sign_in, invitations, device, provider    on the way in
session      the session cookie: from a request to its actor
forms        reading a form, and what is wrong with it
errors       everything that goes wrong, as a page
render       templates and assets
paths        how pages are registered; what is missing
safety       headers, where a form may come from, where a redirect may lead

A page parses, calls services and renders. No rule about accounts, teams or logins lives here.
"""

"""The console: server-rendered pages that work without JavaScript.

pages        the first page, and all of it as one router
paths        paths that lead nowhere
sign_in      signing in and out, making an account where that is open, a forgotten password
invitations  following a link into a team
device       approving `tollgate auth login`
provider     signing in with OpenID Connect
session      from a request to who asks, and the cookie between them
forms        reading a form, and what is wrong with it
errors       everything that goes wrong, as a page
render       templates and the style sheet
safety       headers, where a form may come from, where a redirect may lead

A page parses, calls services and renders. No rule about accounts, teams or logins lives here.
"""

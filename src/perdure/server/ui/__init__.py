"""`/ui/...`: the inbox and the dashboard in the browser. One module per page group, each with a
`router`; pages are Jinja templates, rendered here on the server, and work without JavaScript.

page          the context of an endpoint: rendering, forms, redirects, live updates
page_route    the route class: sign-in, forgery checks, HTML errors, security headers
site          what all pages of one router share
identity      the viewer, and what they may do; sessions and form tokens
display       times, values and Markdown for templates
live          one poll per process for all open tabs
assets        style sheet, scripts and icon
sign_in       signing in and out
notifications new questions for the browser's notifications
links         the page of a signed link: one question, without sign-in
lists         positions in lists, filters without an index, who may see every thread

schedules     effects
operate       health, code changes, outbox, workers, reflections
inbox         everything that needs a person; inbox_items: its items and filter
questions     one question, or many at once; question_access
runs          the list of runs; run_rows: its filters and rows; bulk: many at once
threads       the list of threads

single_run    the page of one run and its actions: _view reads it and renders its parts and tabs;
              _live: live updates; _fork: fork with an edited state
run_states    the state of a run at its steps; events already read
"""

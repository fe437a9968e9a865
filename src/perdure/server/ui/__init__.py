"""`/ui/...`: the inbox and the dashboard in the browser. One module per page group, each with a
`router`; pages are Jinja templates, rendered here on the server, and work without JavaScript.

page          the context of an endpoint: rendering, forms, redirects, live updates
page_route    the route class: sign-in, forgery checks, HTML errors, security headers
site          what all pages of one router share
identity      the viewer, and what they may do
signing       sessions, form tokens and the sign-in URL, signed with the journal's server secret
display       times, values and Markdown for templates
live          one poll per process for all open tabs
assets        style sheet, scripts and icon
sign_in       signing in and out
notifications new questions for the browser's notifications
links         the page of a signed link: one question, without sign-in
change_log    log lines for changes that are in no run's history
lists         positions in lists, filters without an index, who may see every thread

schedules     effects     outbox     reflections     health     code_changes
workers
inbox         everything that needs a person; inbox_filter, inbox_pages, inbox_items, inbox_live
questions     one question; question_access, question_people, answered; several: many at once
runs          the list of runs; run_filters, run_rows: its filters and rows; bulk: many at once
threads       the list of threads

single_run    the page of one run: _view reads it and renders its parts; _tabs, _detail, _live:
              the rest of the page; _actions: pause, cancel, …; _fork: fork with an edited state
run_states    the state of a run at its steps; event_cache: events already read
"""

"""`/ui/...`: the inbox and the dashboard in the browser. One module per page group, each with a
`router`; pages are Jinja templates, rendered here on the server, and work without JavaScript.

page          what an endpoint gets: rendering, forms, redirects, live updates
page_route    the route class: sign-in, forgery checks, HTML errors, security headers
site          what all pages of one router share
identity      who is looking, and what they may do
signing       sessions, form tokens and the sign-in URL, signed with the journal's server secret
display       times, values and Markdown for templates
live          one poll per process for all open tabs
assets        style sheet, scripts and icon
sign_in       signing in and out
notifications new questions for the browser's notifications
links         the page behind a signed link: one question, without sign-in
change_log    what people change that no run's history has
kept          sums that are dear to make, for all viewers
lists         positions in lists, filters without an index, who may see every thread

schedules     effects     outbox     reflections     health     code_changes
workers       scores      prompts    experiments     saved
inbox         everything that needs a person; inbox_filter, inbox_pages, inbox_items, inbox_live
questions     one question; question_access, question_people, answered; several: many at once
decisions     the record of what people decided
runs          the list of runs; run_filters, run_rows: its address and its rows; bulk: many at once
threads       the list of threads; single_thread: one as a chat

single_run    the page of one run; _view reads it and renders its parts, _tabs, _detail, _live the
              rest of it; _actions what can be done, _fork a fork with an edited state
run_states    states of a run at its steps; event_cache, events that were read already
"""

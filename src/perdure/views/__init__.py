"""Views: what people see of a journal, as values and in words.

Pure: values in, frozen dataclasses out. A view knows no database, terminal, colour or width; the
command line and the pages only render it. User text is returned unchanged: renderers escape it.
Renderers for the browser are here too, so that all pages look alike.

    event_wording    one event as a sentence, with its tone and the next step it calls for; the
                     fields of it that are not content, for logs; event_details, one in full
    timeline         the history of a run as periods: driven, asleep, waiting
    run_life         the same as a value with the facts and times of the run, and as a picture:
                     timeline_parts and timeline_marks, what is drawn; timeline_layout, where;
                     timeline_drawing, how
    run_offers       the actions possible on a run or several, with their consequences
    waiting_for      what a run is waiting for now; what the inbox shows
    code_changes     runs that the current code would hold
    graph_picture    the graph of a run as SVG, with the run's position
    message_parts    one message of a state
    formatting       times, durations, counts, figures and whole values in words
    intervals        means, shares and differences with their confidence intervals
    markup           HTML and SVG whose texts are escaped; colours
    question         an open question in any dialect, with the calls it asks about
    question_mail    the mail about it
    answer_form      its form, and the answer; answer_difference: the edits
    schema_form      a JSON Schema as the fields of a form; schema_words, in words
    question_form    a filled-in form as a value of that schema
    health_report    the Health page
    json_values      values as JSON for clients; wire_run, runs with the Agent Server's statuses
"""

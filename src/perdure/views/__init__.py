"""Views: what people see of a journal, as values and in words.

Pure: values in, frozen dataclasses out. A view knows no database, terminal, colour or width; the
command line and the pages only render it. User text is returned unchanged: renderers escape it.
Renderers for the browser are here too, so that all pages look alike.

    event_wording    one event as a sentence, with its tone and the next step it calls for
    timeline         the history of a run as periods: driven, asleep, waiting
    timeline_picture the same as SVG: timeline_parts and timeline_marks, what is drawn;
                     timeline_scale and timeline_layout, where; timeline_drawing, how;
                     picture_style, its style sheet
    run_life         the timeline of a run as a value
    time_spent       how a run spent its time, as a bar
    event_details    one event in full; state_difference, what a step changed
    run_offers       the actions possible on a run, with their consequences; run_facts, its facts
    graph_picture    the graph of a run as SVG, with the run's position; graph_layout, the layout
    attention        what a run is waiting for now; what the inbox shows
    waiting_for      the same in a few words, for lists
    consequences     what pausing, cancelling or retrying a run will do
    bulk_preview     the same for several runs, grouped and counted
    message_parts    one message of a state
    run_tree         the runs below a run
    formatting       times, durations, counts and figures in words
    intervals        means, shares and differences with their confidence intervals
    markup           HTML and SVG whose texts are escaped
    charts           plots as SVG
    page             a self-contained HTML page
    whole_value      a value in full, for the person who decides
    question         an open question in any dialect; tool_calls: the calls it asks about
    answer_form      its form; question_answers: the answers; answer_difference: the edits
    question_end     why a question no longer takes an answer
    schema_form      a JSON Schema as the fields of a form (form_fields); schema_parts, schema_words
    question_form    a filled-in form as a value of that schema; typed_values, field_texts
    schema_summary   a JSON Schema in one line, and an answer that fits it
    event_fields     the fields of an event that are not content, for logs
    prompt_page      the page of prompt versions
    json_text        any value as JSON
    value_text       inputs and outputs of agents as people read them
"""

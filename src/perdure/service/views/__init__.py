"""What people see of a journal: rows and events in words.

Pure: values in, frozen dataclasses out. A view knows no database, terminal, colour or width; the
command line, and any other display, only renders it. Text of users is returned as it is: escaping
it is the renderer's part. What renders for the browser is here too, so that every page looks alike.

    event_wording    one event as a sentence, with its tone and the next step it calls for
    timeline         the history of a run as periods: driven, asleep, waiting
    timeline_picture the same as SVG: timeline_parts is what is drawn, in bounds, timeline_scale and
                     timeline_layout where, timeline_drawing how; picture_style its style sheet
    run_life         the life of a run as a value, which notebooks show; inbox_value, notebook
    time_spent       where the time of a run went, as a bar
    event_details    one event in full; state_difference, what a step changed
    run_offers       what can be done to a run, with its consequence; run_facts, its facts
    graph_picture    the graph of a run as SVG, with where the run is; graph_layout places it
    attention        what a run is waiting for now; what the inbox shows
    waiting_for      the same in a few words, for the lines of a list
    consequences     what pausing, cancelling or retrying a run will do
    bulk_preview     the same for several runs, grouped and counted
    conversation     the state of a thread as a chat; message_parts, one message
    run_tree         the runs below a run
    formatting       times, durations, counts and figures in words
    intervals        means, shares and differences with their confidence intervals
    markup           HTML and SVG whose texts are escaped
    charts           plots as SVG
    page             a self-contained HTML page
    whole_value      a value in full, for a person who decides about it
    question         an open question, whatever dialect it is asked in; tool_calls: what it runs
    answer_form      its form; question_answers, answer_difference: what that sends, and changes
    question_end     why a question takes no answer any more
    schema_form      a JSON Schema as the fields of a form (form_fields); schema_parts, schema_words
    question_form    what was filled in as a value of exactly that schema; typed_values, field_texts
    schema_summary   a JSON Schema in one line, and an answer that fits it
    event_fields     the fields of an event that are not content, for logs and tables
    tables           runs, events, effects, waits, scores and decisions as flat rows
    decided          what people decided, as one line each
    saved_work       what recovery did not repeat, and what each crash cost
    experiments      experiments beside each other; experiment_tables, experiment_page render them
    prompt_page      the page of prompt versions
    json_text        any value as JSON
    value_text       inputs and outputs of agents as people read them
"""

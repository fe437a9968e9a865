"""What people see of a journal: rows and events in words.

Pure: values in, frozen dataclasses out. A view knows no database, terminal, colour or width; the
command line, and any other display, only renders it. Text of users is returned as it is: escaping
it is the renderer's part. What renders for the browser is here too, so that every page looks alike.

    event_wording    one event as a sentence, with its tone and the next step it calls for
    timeline         the history of a run as periods: driven, asleep, waiting
    attention        what a run is waiting for now; what the inbox shows
    run_tree         the runs below a run
    formatting       times, durations, counts and figures in words
    intervals        means, shares and differences with their confidence intervals
    markup           HTML and SVG whose texts are escaped
    charts           plots as SVG
    page             a self-contained HTML page
    schema_summary   a JSON Schema in one line, and an answer that fits it
    event_fields     the fields of an event that are not content, for logs and tables
    tables           runs, events, effects, waits and scores as flat rows
    saved_work       what recovery did not repeat, and what each crash cost
    experiments      experiments beside each other; experiment_tables, experiment_page render them
    prompt_page      the page of prompt versions
    json_text        any value as JSON
    value_text       inputs and outputs of agents as people read them
"""

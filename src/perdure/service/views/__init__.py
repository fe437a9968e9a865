"""What people see of a journal: rows and events in words.

Pure: values in, frozen dataclasses out. A view knows no database, terminal, colour or width; the
command line, and any other display, only renders it. Text of users is returned as it is: escaping
it is the renderer's part.

    event_wording    one event as a sentence, with its tone and the next step it calls for
    timeline         the history of a run as periods: driven, asleep, waiting
    attention        what a run is waiting for now; what the inbox shows
    run_tree         the runs below a run
    formatting       times, durations and counts in words
    schema_summary   a JSON Schema in one line, and an answer that fits it
"""

"""What callers ask of a journal, as plans: checked arguments in, public values out."""

"""What callers ask of a journal, as plans: validated arguments in, public values out."""

"""Pictures of every page for the docs: `make screenshots`, which is `python -m tests.screenshots`.

campaign    the campaign's month with its kills, stopped on a day on which much is under way
agents      what the campaign does not have: a chat, reflections
fonts       the fonts of the pictures, the same on every machine
pages       which pages are shown, and how wide
__main__    takes the pictures, and makes the files small
"""

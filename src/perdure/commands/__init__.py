"""What can happen to runs, waits, schedules, scores, effects and messages: one file per noun.

A plan yields operations, and returns a result; `Journal.arun` runs it.
"""

from perdure.journal import Journal as Journal
from perdure.journal import Op as Op
from perdure.journal import Plan as Plan
from perdure.journal import Poll as Poll

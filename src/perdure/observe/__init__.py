"""What watches runs from outside: logs. An observer is given to `Runtime(observe=…)`."""

from perdure.observe.logs import Logs

__all__ = ["Logs"]

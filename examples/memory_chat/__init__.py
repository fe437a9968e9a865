"""A chat agent that is killed before it has made its memories, and remembers.

agent     the agent itself: what you would write
model     the chat model it talks to, scripted, so that nothing leaves this machine
play      the chat in a process that is killed with SIGKILL, and in the next one
__main__  `python -m examples.memory_chat`: all of it, on your screen
"""

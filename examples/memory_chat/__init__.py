"""A chat agent that is killed before it has made its memories, and still remembers.

agent     the agent: the code an application would have
model     its chat model, scripted, so the example needs no network
play      the chat in a process that is killed with SIGKILL, and in the next process
__main__  `python -m examples.memory_chat` shows all of it on the screen
"""

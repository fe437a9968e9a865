"""A chat agent that is killed before it has made its memories, and still remembers.

agent     the agent: the code an application would have
model     its chat model, scripted, so the example needs no network
play      `python -m examples.memory_chat`: the chat in processes that are killed with SIGKILL
"""

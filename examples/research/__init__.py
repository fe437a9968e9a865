"""A research agent that is killed at any moment, and repeats nothing that was recorded.

agent     the agent: the code you would write
model     the chat model it talks to, scripted, so that nothing leaves this machine
site      the website it reads, on a local HTTP server that counts requests
chaos     `python -m examples.research`: kills its workers with SIGKILL, and counts repeated calls
"""

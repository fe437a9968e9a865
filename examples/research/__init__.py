"""A research agent that is killed at any moment, and repeats nothing that was recorded.

agent     the agent itself: what you would write
model     the chat model it talks to, scripted, so that nothing leaves this machine
site      the website it reads, on a local HTTP server that counts who asks
chaos     kills its worker processes with SIGKILL, and counts what was asked again
__main__  `python -m examples.research`: all of it, on your screen
"""

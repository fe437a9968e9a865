"""The private parts of LangGraph and LangChain that perdure depends on, one function per fact.

    checkpoint_names   names in checkpoints, namespaces and results
    configs            what a graph is called with, and what the config of a running task holds
    task_interrupts    how a task is interrupted, answered and resumed
    output_stream      where the chunks of a stream come from, and from which tasks
    call_stack         whether a node, one of its tools or a thread of its own makes a call
    compiled_graphs    types, output and inner graphs; copies with old names or changed outputs
    neighbours         LangChain's agents, LangSmith's client, the SDK's Auth, LangGraph's stores

No other module of perdure uses a private name of theirs. For each fact `tests/langgraph_port/` has
a test against the installed release, which fails when the fact changes. Nothing here imports
LangGraph before it is needed.
"""

VERIFIED = {
    "langgraph": "1.2.20",
    "langgraph-checkpoint": "4.3.1",
    "langchain-core": "1.7.2",
    "langchain": "1.4.7",
}
"""The releases against which the facts in this package were last read in the source."""

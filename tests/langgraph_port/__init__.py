"""The facts about LangGraph and LangChain on which perdure depends."""

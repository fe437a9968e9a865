"""Programs and pages that use LangGraph's own JavaScript clients, and the graphs they talk to."""

"""What drives runs: claims, leases, LangGraph, and the end of each segment."""

"""What tests of durable agents need: a real PostgreSQL that comes and goes with the test run."""

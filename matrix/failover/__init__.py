"""Changes of the primary under load: `python -m matrix.failover`, or `make failover`.

Three PostgreSQL servers under Patroni and etcd, HAProxy and PgBouncer in front, workers and callers
as real processes, and a ledger outside of the database as the judge.
"""

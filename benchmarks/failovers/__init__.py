"""The loss of the primary: a campaign on real Patroni, etcd, PostgreSQL and PgBouncer."""

"""Every fault is caused for real: a disk is full, a file is gone, a server is killed.

Each has one answer, which docs/guide/faults.md lists: 503 `unavailable` with Retry-After while it
lasts, the same request again once it is over, and never a wrong number or a loss of what was
acknowledged. By file:

- test_disk: full, full by the log of SQLite alone, taking no writes (a mounted tmpfs; where nothing
  may be mounted, RLIMIT_FSIZE on the process that writes: `small_disk` says which it was);
- test_sqlite_file: locked, cut short, overwritten, replaced, removed, its log removed;
- test_postgres: stopped, killed, only to be read from, cut off before and after a commit, silent;
- test_failover: the standby takes over;
- test_processes: killed in the middle of a batch, standing still with a lock, out of memory;
- test_clock: hours forwards and backwards;
- test_migration: killed at each kind of statement, two at once, an older version;
- test_start_up: absent, empty and untrustworthy are three states;
- test_readiness: database, migrations, log and writer told apart.

benchmarks/faults.py causes the same many times, and counts.
"""

"""The judge worker: one process that leases calls from Redis and runs them in its sandboxes.

    Redis ◀──▶ worker ──▶ pool ──▶ sandboxes
                 │         ├─ sandbox_supervisor ──▶ provider, isolation_check
                 │         ├─ sessions, memory_watch, running_call
                 │         └─ lanes
                 └─ cell_dedup

- `worker`: leases calls, pushes results, renews leases, sends heartbeats.
- `pool`: schedules calls and cells on sandboxes. `lanes`: chooses the lane of a call from its imports.
- `sandbox_supervisor`: starts, checks and replaces sandboxes. `provider`: where they run.
- `isolation_check`: the self-test that every lane must pass before it takes calls.
- `running_call`: a call in the pool, and whether it runs again. `sessions`: the table of sessions.
- `memory_watch`: stops calls that take too much memory together, and replaces sandboxes that leak.
- `cell_dedup`: keeps the results of executed cells, so that no cell runs twice.
"""

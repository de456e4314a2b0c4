"""Rollout workers: further processes that run rollouts, when the event loop of one is not enough.

    orchestrator                                       rollout worker (one process each)

    collector                                          worker
      |  problem, sample                                 |  one task per rollout
      v                                                  v
    rollout_workers --> worker_process == link ======> collector.run_rollout --> agent, scoring --> judge
                           |                             |  slots
                           v  HostedSlot                 v
    EnginePool, scheduler, admission <===== link ===== remote_pool              generation --> engines

The orchestrator keeps the pool, the scheduler, the groups and the files. A worker keeps nothing: when it dies, its
slots are released, and a new process runs its unfinished rollouts again, with the same seeds. The link is a pair of
sockets without a name, and a worker exits when its end is closed.

Modules:

- `rollout_workers`  the workers of a stage: the assignment of problems to them
- `worker_process`   one worker in the orchestrator: its process, its slots, its unfinished rollouts
- `worker`           the program of a worker
- `remote_pool`      the pool and the admission queue as a worker sees them
- `messages`         what both sides send
- `link`             messages over a socket
"""

"""The Code Judge: runs Python that a model wrote in gVisor sandboxes, and reports how each call ended.

    client ──HTTP──▶ api ──Redis──▶ worker ──pipes──▶ sandbox.local ──▶ runsc: executor
                                      └──TCP──▶ sandbox.executor_server (pod in gVisor) ──▶ jail: executor

A call changes its shape on this path: CallRequest (HTTP), QueuedCall and LeasedCall (Redis), RunningCall (worker),
ProcessExit (sandbox), CallResult (back to the client).

- `client`: JudgeClient and JudgeSession, used by rollouts, rewards and `rstar2 serve`.
- `api`: the HTTP API, which admits calls, queues them and streams their results.
- `worker`: leases calls from the queue and schedules them on sandboxes.
- `sandbox`: starts sandboxes on this machine, or connects to executor pods.
- `executor`: the program inside a sandbox; all that a snippet can touch is there and in `sandbox.rootfs`.
- `queue`: the queue on Redis Streams between `api` and `worker`. `types`: the data of a call.
- `process_exit`: decides the status of a call from the end of its process.
- `local`: a whole judge on this machine. `loadgen`: load for `rstar2 judge bench`.
- `__main__`: `python -m rstar2_train.judge api|worker|executor`.

No module here imports torch.
"""

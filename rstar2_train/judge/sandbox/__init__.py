"""Sandboxes: the processes around the executor program, on this machine or in pods.

    worker.pool ──▶ base.Sandbox, Lane ◀── local.LocalSandbox ──▶ process ──▶ runsc: executor
                                       ◀── remote.RemoteSandbox ──wire──▶ executor_server ──▶ process ──▶ jail: executor

- `base`: the interface of a sandbox and its lanes: requests in, responses out, in the same order.
- `local`: a `runsc` container of this machine, connected by pipes. `remote`: the connection to an executor pod.
- `executor_server`: the server in an executor pod. `wire`: its protocol and the authentication of workers.
- `process`: starts the executor program with its pipes.
- `oci_bundle`: runsc, the OCI configuration, the environment. `rootfs`: the root file system and the compiled C code.
"""

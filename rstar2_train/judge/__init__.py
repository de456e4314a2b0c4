"""Code Judge: runs the Python that a model writes, in gVisor, and says from outside how each call ended.

The flow: client -> `api` (HTTP) -> `queue` (Redis Streams) -> `worker` -> `pool` of `sandbox`es -> `executor/` inside.
Imports no torch. Everything the model's code can touch is in `executor/` and in the root that `rootfs` makes.
"""

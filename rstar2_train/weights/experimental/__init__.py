"""Transfers of weight versions from rank 0 to the engines (`weightTransport: Collective`). Experimental.

The tests run it with gloo on the CPU, and with a library in place of NCCL. No GPU has run it: `Auto` does not select
it, and it leaves this package when two GPUs have.

    trainer.collective_sender ---- tensor_group ----> inference.transfer_backend

- `tensor_group`    the group of a transfer: NCCL or RCCL, else gloo
- `group_library`   chooses the library
- `nccl_group`      a group of GPUs, with the bindings in `nccl`
- `offer_channel`   the orchestrator's requests to rank 0 for transfers, also during an update
- `transfer`        the messages of vLLM's weight-transfer API

Modules without torch: all except `tensor_group` and `nccl_group`.
"""

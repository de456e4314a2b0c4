"""Weight versions between trainer and engines: files, the engine's host copy, the group for broadcasts, and the probe.

    trainer.shard_writer                              inference.worker_extension (in each vLLM worker)
      |  each rank: its shards, or their changes        |  swap: host copy -> vLLM's parameters
      v                                                 v
    shard_file  ---->  version_store  ---->  host_copy (all weights of the engine's version, in CPU memory)
      ^                a folder per version,            ^
    gap_codec          its manifest, the chain          |
                                                        |
    trainer.collective_sender ---- experimental ----> inference.transfer_backend

    experimental: transfers from rank 0 to the engines, without the files
    probe: the fixed tokens that every engine scores after an update, and the verdict on its log-probabilities
    adapter_folder: the adapter of a LoRA stage, in the form of peft; published as a version of its own
    adapter_check: verifies such a version before an engine loads it

Modules without torch: all but two of `experimental`. No module needs more than NumPy, safetensors
and the standard library, because the engines' image has neither Arrow nor a zstd codec.
"""

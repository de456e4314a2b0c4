"""Runs a function in several processes that form a gloo group: the real collectives without Ray."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rstar2_train.utils.ports import free_ports

TIMEOUT_SECONDS = 300


def run_ranks(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """Call `function(rank, ranks, port, *args)` in `ranks` processes; return its results by rank; no tensors."""
    # The server process imports torch and transformers once; each rank is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers.models.qwen3.modeling_qwen3", "rstar2_train.trainer.rank"])
    queue: Any = context.Queue()
    port = free_ports(1)[0]
    folders = [path for path in sys.path if path]
    processes = [
        context.Process(target=_child, args=(function, folders, queue, (rank, ranks, port, *args)))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        results = {}
        for _ in processes:
            rank, error, result = queue.get(timeout=TIMEOUT_SECONDS)
            assert not error, error
            results[rank] = result
    finally:
        for process in processes:
            process.join(timeout=0 if len(results) < ranks else TIMEOUT_SECONDS)
            if process.is_alive():
                process.kill()
    return [results[rank] for rank in range(ranks)]


def _child(function: Callable[..., Any], folders: list[str], queue: Any, args: tuple[Any, ...]) -> None:
    sys.path[:] = folders
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    torch.set_num_threads(1)
    try:
        queue.put((args[0], None, function(*args)))
    except BaseException:
        queue.put((args[0], traceback.format_exc(), None))
        raise

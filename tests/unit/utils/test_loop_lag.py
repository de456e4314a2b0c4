"""Measurement of the event loop's lag."""

import asyncio
import time

from rstar2_train.utils.loop_lag import LagSamples, LoopLag


async def test_loop_lag_measures_a_blocked_loop() -> None:
    """A call that holds the loop appears in the largest sample; without samples the lag is 0."""
    async with LoopLag(interval=0.001) as lag:
        assert lag.quantile(1.0) == 0
        for _ in range(3):
            await asyncio.sleep(0.005)
        time.sleep(0.05)
        await asyncio.sleep(0.005)
    assert lag.quantile(1.0) > 0.04
    assert lag.quantile(0.5) <= lag.quantile(1.0)


def test_lag_samples_of_another_process_are_added() -> None:
    """The samples of a worker move to the orchestrator, each once."""
    worker, orchestrator = LagSamples(), LagSamples()
    worker.extend([0.1, 0.3])
    orchestrator.extend(worker.take_samples())
    orchestrator.extend(worker.take_samples())
    assert (orchestrator.take(0.5), orchestrator.take(1.0)) == (0.1, 0.0)

"""The pacer of tasks that become ready together."""

import asyncio

from rstar2_train.utils.pacer import Pacer


async def test_pacer_lets_other_work_between_tasks() -> None:
    """Of many tasks that start together, other callbacks run between any two; the order is that of arrival."""
    pacer, order = Pacer(), list[int]()
    iterations = 0

    def count() -> None:
        nonlocal iterations
        iterations += 1
        if len(order) < 50:
            asyncio.get_running_loop().call_soon(count)

    async def task(number: int) -> None:
        await pacer.wait()
        order.append(number)

    count()
    await asyncio.gather(*(task(number) for number in range(50)))
    assert order == list(range(50))
    assert iterations >= 49


async def test_pacer_survives_cancelled_tasks() -> None:
    """A cancelled task does not hold up the others."""
    pacer = Pacer()
    tasks = [asyncio.create_task(pacer.wait()) for _ in range(10)]
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False] * 5
    async with asyncio.timeout(120):
        await pacer.wait()

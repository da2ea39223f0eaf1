"""Overrides of the settings of calls on CUDA: no context sees another one's."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from jax_convgrad._src.runtime import settings
from jax_convgrad._src.runtime.settings import Settings


def test_overrides_that_overlap_in_two_threads_stay_apart() -> None:
    """Neither ends inside the other: A begins, B begins, A ends, B ends, a hundred times."""
    turn = threading.Barrier(2, timeout=60)
    outside = settings.current()

    def first() -> None:
        for i in range(100):
            mine = Settings(search="heuristic", generation=i)
            with settings.override(mine):
                turn.wait()
                turn.wait()
                assert settings.current() == settings.snapshot() == mine
            assert settings.current() == outside
            turn.wait()

    def second() -> None:
        for i in range(100):
            mine = Settings(search="exhaustive", generation=i)
            turn.wait()
            with settings.override(mine):
                turn.wait()
                turn.wait()
                assert settings.current() == settings.snapshot() == mine
            assert settings.current() == outside

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    assert settings.current() == outside


def test_overrides_of_two_tasks_in_one_thread_stay_apart() -> None:
    async def run(mine: Settings, ready: asyncio.Event, other: asyncio.Event) -> Settings:
        with settings.override(mine):
            ready.set()
            await other.wait()
            return settings.current()

    async def both() -> list[Settings]:
        a, b = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(
            run(Settings(workspace_limit=1), a, b), run(Settings(workspace_limit=2), b, a)
        )

    assert [found.workspace_limit for found in asyncio.run(both())] == [1, 2]


def test_an_override_ends_where_its_body_raises() -> None:
    outside = settings.current()
    try:
        with (
            settings.override(Settings(deterministic=True)),
            settings.override(Settings(generation=7)),
        ):
            assert settings.current().generation == 7
            raise KeyError
    except KeyError:
        pass
    assert settings.current() == outside


def test_a_change_is_of_the_process_and_leaves_overrides_alone() -> None:
    before = settings.current().workspace_limit
    mine = Settings(workspace_limit=3)
    seen: list[int | None] = []
    try:
        with settings.override(mine):
            settings.change(workspace_limit=12345)
            assert settings.current() == mine
            thread = threading.Thread(
                target=lambda: seen.append(settings.current().workspace_limit)
            )
            thread.start()
            thread.join()
        assert seen == [12345] and settings.current().workspace_limit == 12345
    finally:
        settings.change(workspace_limit=before)

"""Background tasks that fail or are cancelled, and tasks that several wait for."""

import asyncio
import logging

import pytest
from tests import eager

from sprocketmq.errors import ClientClosed, ConnectionLost
from sprocketmq.net import tasks
from sprocketmq.net.tasks import Background, all_of, settled, share
from sprocketmq.testing import eventually


@pytest.fixture
async def background():
    owned = Background("owner")
    yield owned
    await owned.close()


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


class Work:
    """Counts its runs; each goes on until it is told how to end."""

    def __init__(self) -> None:
        self.runs = 0
        self.ending: asyncio.Future[None]

    async def __call__(self) -> None:
        self.runs += 1
        self.ending = asyncio.get_running_loop().create_future()
        await self.ending


async def test_kept_work_that_fails_is_logged_and_runs_again(background, caplog):
    work = Work()
    background.keep("the work", work)
    await eventually(lambda: work.runs == 1)
    work.ending.set_exception(ValueError("a fault in the program"))
    await eventually(lambda: work.runs == 2)
    assert errors(caplog) == ["owner: the work failed, it runs again in 0.1 s"]
    assert "a fault in the program" in caplog.text


async def test_kept_work_that_is_cancelled_by_a_stranger_is_logged_and_runs_again(background, caplog):
    work = Work()
    kept = background.keep("the work", work)
    await eventually(lambda: work.runs == 1)
    kept.task.cancel()
    await eventually(lambda: work.runs == 2)
    assert errors(caplog) == ["owner: the work was cancelled by code that does not own it; it runs again"]


async def test_kept_work_that_is_cancelled_before_its_first_step_runs_all_the_same(background):
    work = Work()
    background.keep("the work", work).task.cancel()
    await eventually(lambda: work.runs == 1)


async def test_pauses_between_runs_grow_and_are_bounded(background, caplog, monkeypatch):
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(tasks, "LONGEST_PAUSE_S", 0.004)

    async def fails() -> None:
        raise ValueError("always")

    background.keep("the work", fails)
    await eventually(lambda: len(errors(caplog)) >= 5)
    assert [line.split("again in ")[1] for line in errors(caplog)[:5]] == ["0.001 s", "0.002 s", "0.004 s", "0.004 s", "0.004 s"]


async def test_kept_work_that_returns_or_is_stopped_does_not_run_again(background, caplog):
    through, stopped = Work(), Work()
    first, second = background.keep("through", through), background.keep("stopped", stopped)
    await eventually(lambda: through.runs and stopped.runs)
    through.ending.set_result(None)
    assert second.stop()
    assert not second.stop()
    await asyncio.wait([first.task, second.task])
    await asyncio.sleep(0)
    assert not background.kept
    assert (first.alive, second.alive, through.runs, stopped.runs) == (False, False, 1, 1)
    assert errors(caplog) == []


async def test_an_owner_that_closes_cancels_everything_without_a_word(caplog):
    owned = Background("owner")
    work, once = Work(), Work()
    owned.keep("the work", work)
    owned.spawn(once(), "once")
    await eventually(lambda: work.runs and once.runs)
    await owned.close()
    await owned.close()
    assert work.ending.cancelled()
    assert once.ending.cancelled()
    assert errors(caplog) == []


async def test_a_pause_ends_with_its_owner(caplog):
    owned = Background("owner")
    work = Work()
    kept = owned.keep("the work", work)
    await eventually(lambda: work.runs == 1)
    work.ending.set_exception(ValueError("x"))
    await asyncio.wait([kept.task])
    await owned.close()
    assert not kept.alive
    assert kept._timer is None


async def test_a_job_that_fails_in_any_way_is_run_again(background, caplog):
    outcomes = [ConnectionLost("h:1", "gone"), ValueError("a fault in the program"), None]
    done = asyncio.Event()

    def job() -> None:
        outcome = outcomes.pop(0)
        if outcome is None:
            done.set()
            outcomes.append(None)
        else:
            raise outcome

    background.every(0.001, job, "the job")
    await asyncio.wait_for(done.wait(), 60)
    assert errors(caplog) == ["owner: the job failed, again in 0.001 s"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


async def test_work_that_runs_once_and_fails_or_is_cancelled_is_logged(background, caplog):
    async def fails() -> None:
        raise ValueError("x")

    work = Work()
    background.spawn(fails(), "first")
    cancelled = background.spawn(work(), "second")
    await eventually(lambda: work.runs)
    cancelled.cancel()
    await eventually(lambda: len(errors(caplog)) == 2)
    assert errors(caplog) == ["owner: first failed", "owner: second was cancelled by code that does not own it: its work is not done"]


async def test_tasks_begin_in_the_next_turn_whatever_factory_the_program_has(background):
    asyncio.get_running_loop().set_task_factory(eager.factory)
    spawned, kept = Work(), Work()
    background.spawn(spawned(), "first")
    background.keep("second", kept)
    assert (spawned.runs, kept.runs) == (0, 0)
    await eventually(lambda: (spawned.runs, kept.runs) == (1, 1))


# --- tasks that several wait for ---


async def test_cancelling_one_of_those_who_wait_cancels_nothing_else(background):
    work = Work()
    shared = background.spawn(work(), "shared", awaited=True)
    one, other = (asyncio.ensure_future(share(shared, AssertionError)) for _ in range(2))
    third = asyncio.ensure_future(settled(shared))
    await eventually(lambda: work.runs)
    one.cancel()
    await asyncio.wait([one])
    assert one.cancelled()
    assert not shared.done()
    work.ending.set_result(None)
    await asyncio.gather(other, third)


async def test_a_shared_task_that_its_owner_cancelled_is_no_cancellation_of_those_who_wait(background):
    work = Work()
    shared = background.spawn(work(), "shared", awaited=True)
    waiting = asyncio.ensure_future(share(shared, lambda: ClientClosed("closed meanwhile")))
    third = asyncio.ensure_future(settled(shared))
    await eventually(lambda: work.runs)
    await background.close()
    with pytest.raises(ClientClosed, match="closed meanwhile"):
        await waiting
    await third


async def test_all_of_several_works_end_before_the_error_of_one_is_raised():
    ended = asyncio.Event()

    async def fails() -> None:
        raise ValueError("first")

    async def takes_longer() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        ended.set()

    with pytest.raises(ValueError, match="first"):
        await all_of([fails(), takes_longer()])
    assert ended.is_set()
    assert await all_of([asyncio.sleep(0, "a"), asyncio.sleep(0, "b")]) == ["a", "b"]


async def test_a_part_that_a_stranger_cancelled_is_an_error_and_no_cancellation():
    part = asyncio.ensure_future(asyncio.Event().wait())
    whole = asyncio.ensure_future(all_of([part]))
    await asyncio.sleep(0)
    part.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        await whole


# --- an end that lets tasks finish --------------------------------------------------------------------------------------


async def test_a_drain_stops_what_is_kept_and_waits_for_the_rest(background, caplog):
    work = Work()
    kept = background.keep("the work", work)
    await asyncio.sleep(0)
    ended = []

    async def finishes() -> None:
        await asyncio.sleep(0)
        ended.append(1)

    background.spawn(finishes(), "an answer")
    await background.drain()
    assert ended == [1]
    assert kept.task.cancelled()
    assert not kept.alive
    assert work.runs == 1
    assert errors(caplog) == []


async def test_a_drain_leaves_what_takes_too_long_to_close(background):
    task = background.spawn(asyncio.Event().wait(), "an answer that never comes")
    await background.drain(timeout_s=0.01)
    assert not task.done()
    await background.close()
    assert task.cancelled()


async def test_a_task_that_its_owner_ends_is_not_logged(background, caplog, monkeypatch):
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.0)
    task = background.spawn(asyncio.Event().wait(), "news")
    await asyncio.sleep(0)
    await background.end(task)
    await background.end(task)
    await background.end(None)
    assert task.cancelled()
    assert errors(caplog) == []

"""What every simulated run shares: carrying out a plan, noting what must not happen, making a failing plan shorter."""

from __future__ import annotations

import gc
import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sprocketmq.testing.rig.determinism import seeded
from sprocketmq.testing.rig.network import Process
from sprocketmq.testing.rig.trace import Trace
from sprocketmq.testing.rig.virtual_loop import VirtualLoop, owner

START_S = 1000.0
LAST_S = 3000.0
# A run has some ten thousand.
MOST_CALLBACKS = 80_000


class BrokenPromise(AssertionError):
    """Something that must hold does not."""


class AnyPlan(Protocol):
    """A plan of any kind of run; its text is all that a developer needs to see of it."""

    @property
    def seed(self) -> str: ...

    def shorter(self) -> Sequence[AnyPlan]:
        """Return plans that are a little simpler than this one, the simplest first."""
        ...

    def run(self) -> Outcome:
        """Carry it out."""
        ...


@dataclass
class Outcome:
    """What came of a run. ``problem`` is empty when all is well."""

    plan: Any
    problem: str
    trace: Trace
    virtual_s: float
    cpu_s: float
    acknowledged: int
    crashes: int

    @property
    def digest(self) -> str:
        return self.trace.digest


class Course:
    """One run. Subclasses make their machines in ``prepare`` and act in ``main``; ``crashes`` and ``acknowledged`` count."""

    def __init__(self, plan: Any, loop: VirtualLoop, trace: Trace) -> None:
        self.plan = plan
        self.loop = loop
        self.trace = trace
        self.problems: list[str] = []
        self.over = False
        self.crashes = 0
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    async def main(self) -> None:
        raise NotImplementedError

    @property
    def acknowledged(self) -> int:
        raise NotImplementedError

    def check(self, condition: object, problem: str) -> None:
        if not condition:
            raise BrokenPromise(problem)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note errors that live processes log, and callbacks that fail."""
        handler = _ErrorNotes(self)
        logger = logging.getLogger("sprocketmq")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        self.loop.set_exception_handler(self._callback_failed)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate

    @property
    def unwatched(self) -> bool:
        """Whether what happens now is of no interest: the run is over, or its process is dead."""
        process = owner.get()
        return self.over or (isinstance(process, Process) and not process.alive)

    def _callback_failed(self, _: Any, context: dict[str, Any]) -> None:
        if not self.unwatched:
            self.problems.append(f"a callback failed: {context.get('message')}: {context.get('exception')!r}")


class _ErrorNotes(logging.Handler):
    """Puts warnings into the trace; an error with a traceback, in a live process, is a problem."""

    def __init__(self, course: Course) -> None:
        super().__init__()
        self._course = course

    def emit(self, record: logging.LogRecord) -> None:
        if self._course.unwatched:
            return
        text = record.getMessage()
        self._course.trace.note(f"{record.levelname} {text}")
        if record.exc_info and record.levelno >= logging.ERROR:
            self._course.problems.append(f"logged: {text}: {record.exc_info[1]!r}")


def carry_out(plan: AnyPlan, kind: type[Course]) -> Outcome:
    """Carry out a plan."""
    began = time.process_time()
    collecting = gc.isenabled()
    gc.disable()  # a run has few cycles, and collections at random moments would end forgotten coroutines
    loop = VirtualLoop(random.Random(f"{plan.seed} jobs"), start_s=START_S, last_s=LAST_S, most_callbacks=MOST_CALLBACKS)
    trace = Trace(loop.time)
    try:
        with seeded(plan.seed, loop):
            course = kind(plan, loop, trace)
            with course.watched():
                try:
                    loop.run_until_complete(course.main())
                except Exception as e:
                    course.problems.append(f"{type(e).__name__}: {e}")
                course.over = True
                loop.end_tasks()
    finally:
        loop.close()
        if collecting:
            gc.enable()
    problem = "; ".join(course.problems)
    trace.note(f"end: {problem or 'all is well'}")
    return Outcome(plan, problem, trace, loop.time() - START_S, time.process_time() - began, course.acknowledged, course.crashes)


def shrink(plan: AnyPlan, *, most: int = 60) -> Outcome:
    """Return the outcome of the shortest failing plan that can be made of a failing one in ``most`` runs."""
    outcome = plan.run()
    tried = 1
    found = True
    while found and outcome.problem:
        found = False
        for candidate in outcome.plan.shorter():
            if tried >= most:
                return outcome
            tried += 1
            again = candidate.run()
            if again.problem:
                outcome, found = again, True
                break
    return outcome


def explain(outcome: Outcome, *, lines: int = 60) -> str:
    """Return what a developer needs to see of a failure."""
    return f"{outcome.problem}\n{outcome.plan}\ntrace {outcome.digest}:\n{outcome.trace.tail(lines)}"

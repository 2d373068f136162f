"""A coroutine run under the eyes of a visitor, who comes to each point where it waits."""

import itertools
import types
from collections.abc import Callable, Coroutine
from typing import Any


@types.coroutine
def stepped(work: Coroutine[Any, Any, Any], visit: Callable[[int, str], BaseException | None]):
    """Run ``work``, and call ``visit(wait, "before")`` when it comes to wait 1, 2 and so on.

    ``visit(wait, "after")`` is called when what it waits for is there, before it runs on: with the error that is returned, if one is.
    """
    value, error = None, None
    for wait in itertools.count(1):
        try:
            waits_for = work.throw(error) if error is not None else work.send(value)
        except StopIteration as e:
            return e.value
        value, error = None, None
        visit(wait, "before")
        try:
            value = yield waits_for
        except BaseException as e:
            error = e
        else:
            error = visit(wait, "after")

"""*Overview*: the newest sample of the cluster, its history, and the samples as they come."""

import contextlib
from collections.abc import AsyncGenerator

from sprocketmq.errors import RetriableError
from sprocketmq.web.calls import Call, Route, Stream

# How often a viewer's right to see the samples, which the dashboard takes with its own credentials, is checked.
RIGHT_MAX_AGE_S = 30.0


async def overview(call: Call) -> object:
    """Return the newest sample and the rates of the last hour."""
    await check_right(call)
    collector = call.dashboard.collector
    view = await collector.fresh()
    return {"cluster": view, "history": collector.history}


async def live(call: Call) -> AsyncGenerator[tuple[str, object]]:
    """Yield each sample as it is taken."""
    async for view in call.dashboard.collector.updates():
        if not call.dashboard.sessions.open(call.session):
            return
        await check_right(call)
        yield "cluster", view


async def check_right(call: Call) -> None:
    """Check that the viewer may see statistics of brokers. Raises AuthorizationFailed, or AuthenticationFailed for a user who is gone.

    Where nobody logs in, everybody may. A cluster that does not answer tells nothing new: old samples are shown, with a sentence.
    """
    if not call.session.user:
        return
    with contextlib.suppress(RetriableError):
        await call.cached("overview: right", RIGHT_MAX_AGE_S, lambda: _ask_as_viewer(call))


async def _ask_as_viewer(call: Call) -> None:
    admin = await call.admin()
    for broker in (await admin.cluster()).broker_addr_table.values():
        for address in broker.broker_addrs.values():
            with contextlib.suppress(RetriableError):
                await admin.broker_runtime(address)
                return


ROUTES = (Route("GET", "/api/overview", overview, timeout_s=10.0),)
STREAMS = (Stream("/api/live", live),)

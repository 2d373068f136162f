"""The pages of the dashboard, in the order of the navigation. A page is one entry here, its functions and its module of JavaScript.

The module is ``static/pages/NAME.js``, exports ``mount(root, context)`` and finds its texts under ``page.NAME`` and ``NAME.`` in
``static/i18n``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sprocketmq.web.api import dead_letters, groups, messages, overview, spark, store, topics, traces
from sprocketmq.web.calls import Route, Stream


@dataclass(frozen=True)
class Page:
    """One page: its name, the path in the browser, and the requests that it makes."""

    name: str
    path: str
    routes: Sequence[Route]
    streams: Sequence[Stream] = ()


PAGES = (
    Page("overview", "/", overview.ROUTES, overview.STREAMS),
    Page("topics", "/topics", topics.ROUTES),
    Page("groups", "/groups", groups.ROUTES),
    Page("messages", "/messages", messages.ROUTES, messages.STREAMS),
    Page("dead_letters", "/dead-letters", dead_letters.ROUTES),
    Page("traces", "/traces", traces.ROUTES),
    Page("store", "/store", store.ROUTES),
    Page("spark", "/spark", spark.ROUTES),
)

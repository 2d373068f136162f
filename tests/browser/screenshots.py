"""``make screenshots``: pictures of all pages, in both themes and at the width of a phone, for docs/images/dashboard.

The cluster is made for them: topics of three kinds, groups that keep up and that do not, dead letters, traces.
"""

import json
import random
import sys
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright
from tests.browser.conftest import DESKTOP, PHONE, chromium

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.net.loops import LoopThread
from sprocketmq.web.dashboard import Dashboard
from sprocketmq.web.pages import PAGES
from sprocketmq.web.server import DashboardServer
from sprocketmq.web.target import ClusterTarget

OUT = Path(__file__).parents[2] / "docs/images/dashboard"
COLORS = 96  # of the palette: a picture is 15 to 40 kB then
WORDS = ("keyboard", "teapot", "lamp", "bicycle", "atlas", "kettle")
SAMPLES = 6
DEAD_GROUP = "invoices"


def populate(cluster: LocalCluster, seen: threading.Event) -> str:
    """Fill the cluster; return the id of a message with a trace."""
    dice = random.Random(17)
    with sync.AdminClient(namesrv=cluster.namesrv) as admin:
        for topic, queues, attributes in (("orders", 8, {}), ("clicks", 4, {"queue.type": "BatchCQ"}), ("payments", 4, {})):
            admin.create_topic(topic, queues=queues, attributes=attributes)
        for group in ("billing", "shipping"):
            admin.create_group(group)
        admin.create_group(DEAD_GROUP, max_reconsume_times=0)
    traced = ""
    with sync.Producer("shop", namesrv=cluster.namesrv, trace=True) as producer:
        for i in range(120):
            body = json.dumps({"order": i, "item": dice.choice(WORDS), "price": dice.randint(500, 90000), "paid": dice.random() < 0.8})
            sent = producer.send(Message("orders", body.encode(), tag=dice.choice(("new", "express")), keys=(f"order-{i}",)))
            traced = sent.msg_id
        producer.send_batch([Message("clicks", f'{{"page": {i}}}'.encode()) for i in range(500)])
        producer.send_batch([Message("payments", json.dumps({"payment": i}).encode(), keys=(f"payment-{i}",)) for i in range(40)])

    def consume(batch) -> None:
        seen.set()
        if any(message.tag == "express" for message in batch):
            raise ValueError("no address for this parcel")

    with sync.PushConsumer(
        DEAD_GROUP, ["orders"], namesrv=cluster.namesrv, consume_from="first", max_reconsume_times=0, trace=True
    ) as consumer:
        consumer.listen(consume)
        seen.wait(30)
        cluster.messages(f"%DLQ%{DEAD_GROUP}", count=5)
    with sync.PullConsumer("billing", namesrv=cluster.namesrv, consume_from="first") as consumer:
        consumer.subscribe("orders")
        for _ in range(3):
            consumer.poll(max_messages=16)
        consumer.commit()
    return traced


def shoot(browser: Browser, url: str, name: str, address: str, kind: str, options: dict) -> None:
    """Write one picture, with the palette that its colours need."""
    context = browser.new_context(locale="en-US", device_scale_factor=1, **options)
    page = context.new_page()
    page.goto(f"{url}{address}")
    page.locator("h1").first.wait_for()
    expect(page.locator(".skeleton")).to_have_count(0)
    page.wait_for_timeout(700)
    path = OUT / f"{name}-{kind}.png"
    page.screenshot(path=path, full_page=kind == "phone")
    context.close()
    with Image.open(path) as image:
        image.crop((0, 0, image.width, min(image.height, 1600))).convert("RGB").quantize(COLORS).save(path, optimize=True)


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    thread = LoopThread("dashboard").start()
    with LocalCluster(brokers=1, replicas=1) as cluster, sync_playwright() as playwright:

        async def start() -> DashboardServer:
            server = DashboardServer(ClusterTarget(cluster.namesrv))
            await server.start()
            return server

        server = thread.run(start())
        traced = populate(cluster, threading.Event())
        more = {
            "topics-detail": "/topics?topic=orders",
            "groups-detail": "/groups?group=billing",
            "messages-found": "/messages?topic=orders",
            "dead_letters-group": f"/dead-letters?group={DEAD_GROUP}",
            "traces-one": f"/traces?id={traced}",
        }
        wanted = {page.name: page.path for page in PAGES} | more
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        thread.run(samples(server.dashboard))
        for name, address in wanted.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            shoot(browser, server.url, name, address, "light", {"viewport": DESKTOP, "color_scheme": "light"})
            shoot(browser, server.url, name, address, "dark", {"viewport": DESKTOP, "color_scheme": "dark"})
            shoot(browser, server.url, name, address, "phone", {"viewport": PHONE, "color_scheme": "light", "has_touch": True})
        browser.close()
        thread.run(server.stop())
    thread.stop()
    return 0


async def samples(dashboard: Dashboard) -> None:
    """Wait for some samples, so that there are lines to draw."""
    taken = 0
    async for _ in dashboard.collector.updates():
        taken += 1
        if taken >= SAMPLES:
            return


if __name__ == "__main__":
    sys.exit(main())

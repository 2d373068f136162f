"""The page Topics in a browser: the list, one topic, each action, and what goes wrong meanwhile."""

import re

import pytest
from playwright.sync_api import expect

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.protocol.bodies import TopicConfig
from sprocketmq.web.target import ClusterTarget

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def admin(cluster):
    with sync.AdminClient(namesrv=cluster.namesrv) as client:
        yield client


@pytest.fixture
def orders(cluster, admin):
    """Topic orders with 30 messages of two tags."""
    admin.create_topic("orders", queues=2)
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        for n in range(30):
            producer.send(Message("orders", b"%d" % n, tag="new" if n % 3 else "paid"))
    yield "orders"
    admin.delete_topic("orders")


def row(page, text):
    return page.get_by_role("row", name=re.compile(text))


def test_a_topic_is_created_changed_and_deleted(page, dashboard, admin):
    page.goto(f"{dashboard}/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("made-here")
    dialog.get_by_label("Queues on each broker").fill("3")
    dialog.get_by_label("Type", exact=False).first.select_option("1")
    dialog.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name="made-here")).to_be_visible()
    expect(row(page, "broker-a")).to_have_count(3)
    (config,) = admin.topic_config("made-here").values()
    assert (config.read_queue_nums, config.attributes) == (3, {"queue.type": "BatchCQ"})

    page.get_by_role("button", name="Change").click()
    dialog.get_by_label("Queues on each broker").fill("1")
    expect(dialog).to_contain_text("can no longer be read")
    dialog.get_by_label("Queues on each broker").fill("4")
    dialog.get_by_role("button", name="Change").click()
    expect(row(page, "broker-a")).to_have_count(4)

    page.get_by_role("button", name="Delete").click()
    delete = dialog.get_by_role("button", name="Delete")
    expect(delete).to_be_disabled()
    dialog.get_by_role("textbox").fill("made-her")
    expect(delete).to_be_disabled()
    dialog.get_by_role("textbox").fill("made-here")
    delete.click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert "made-here" not in admin.topics()


def test_a_refusal_is_shown_in_the_dialog(page, dashboard, orders):
    page.goto(f"{dashboard}/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("orders")
    dialog.get_by_role("button", name="Create topic").click()
    expect(dialog.get_by_role("alert")).to_contain_text("exists already")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    page.problems.clear()  # the browser itself reports the answer 400


def test_a_topic_is_shown_with_its_figures_tags_and_queues(page, dashboard, orders):
    page.goto(f"{dashboard}/topics")
    expect(row(page, "orders.*plain.*30")).to_be_visible()
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    expect(page.get_by_role("table", name="Tags")).to_contain_text("new")
    expect(page.get_by_role("table", name="Tags").get_by_role("row", name=re.compile("paid.*10"))).to_be_visible()
    expect(row(page, "broker-a")).to_have_count(2)
    expect(page.locator(".live")).to_have_text("Live")


def test_a_topic_is_deleted_while_its_page_is_open(page, dashboard, admin):
    admin.create_topic("short-lived", queues=1)
    page.clock.install()
    page.goto(f"{dashboard}/topics?topic=short-lived")
    expect(page.get_by_role("heading", name="short-lived")).to_be_visible()
    admin.delete_topic("short-lived")
    gone = page.get_by_text("does not exist any more")
    for _ in range(30):
        page.clock.run_for(11_000)
        page.wait_for_load_state("networkidle")
        if gone.is_visible():
            break
    expect(gone).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    page.problems.clear()  # the browser itself reports the answer 404


def test_read_only_offers_no_changes(page, cluster, dashboards, orders):
    address = dashboards(ClusterTarget(cluster.namesrv), read_only=True)
    page.goto(f"{address}/topics")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    expect(page.get_by_role("button", name="Create topic")).to_have_count(0)
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_role("table", name="Tags")).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    expect(page.get_by_role("button", name="Change")).to_have_count(0)


def test_hostile_names_are_text(page, dashboard, orders):
    def listed(route):
        told = route.fetch().json()
        told["topics"].append({"name": HOSTILE, "kind": "normal", "type": "plain", "queues": 1, "perm": 6, "brokers": [HOSTILE]})
        told["missing"] = {HOSTILE: HOSTILE}
        route.fulfill(json=told)

    def figures(route):
        names = route.request.post_data_json["names"]
        route.fulfill(json={"topics": {name: {"unknown": {HOSTILE: HOSTILE}} for name in names}})

    def detail(route):
        told = route.fetch().json()
        told.update(groups=[HOSTILE], unknown={HOSTILE: HOSTILE})
        told["settings"][0].update(broker=HOSTILE, attributes={HOSTILE: HOSTILE})
        told["queue_rows"][0]["broker"] = HOSTILE
        route.fulfill(json=told)

    def tags(route):
        route.fulfill(
            json={"messages": 1, "tags": [{"tag": HOSTILE, "count": 1}], "more_tags": 0, "mean_body_bytes": 1, "unreachable": [HOSTILE]}
        )

    page.route("**/api/topics", listed)
    page.route("**/api/topics/figures", figures)
    page.route("**/api/topic?*", detail)
    page.route("**/api/topic/tags?*", tags)
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.goto(f"{dashboard}/topics")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_role("table", name="Tags")).to_contain_text(HOSTILE)
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    expect(page.locator("main img")).to_have_count(0)


def test_ten_thousand_topics_are_listed_and_few_are_drawn(page, dashboards):
    with LocalCluster() as cluster, sync.AdminClient(namesrv=cluster.namesrv) as admin:
        for first in range(0, 10_000, 1000):
            admin.create_topics([TopicConfig(f"topic-{n:05}", 1, 1) for n in range(first, first + 1000)])
        asked = []
        page.on("request", lambda request: asked.append(request) if "figures" in request.url else None)
        page.goto(f"{dashboards(ClusterTarget(cluster.namesrv))}/topics")
        expect(page.get_by_text("10000 in all")).to_be_visible()
        expect(page.get_by_role("link", name="topic-00000")).to_be_visible()
        assert page.locator("tbody tr").count() < 200
        page.get_by_role("searchbox").fill("topic-09999")
        expect(page.get_by_text("1 of 10000")).to_be_visible()
        expect(row(page, "topic-09999.*plain.*1.*0")).to_be_visible()
        assert all(len(request.post_data_json["names"]) <= 50 for request in asked)
        assert len(asked) < 20

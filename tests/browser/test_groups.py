"""The page Groups in a browser: the list, one group with its members, and a reset with its preview."""

import re

import pytest
from playwright.sync_api import expect

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.protocol.message import MessageQueue
from sprocketmq.web.target import ClusterTarget

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def billing(cluster):
    """Group billing, which has read 3 of 10 messages in topic orders."""
    with sync.AdminClient(namesrv=cluster.namesrv) as admin, sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        admin.create_topic("orders", queues=1)
        admin.create_group("billing")
        for n in range(10):
            producer.send(Message("orders", b"%d" % n))
        admin.reset_offset("billing", MessageQueue("orders", "broker-a", 0), 3)
        yield admin
        admin.delete_group("billing", dead_letters=True)
        admin.delete_topic("orders")


def row(page, text):
    return page.get_by_role("row", name=re.compile(text))


def test_groups_are_listed_with_their_lag(page, dashboard, billing):
    page.goto(f"{dashboard}/groups")
    expect(row(page, "billing.*offline.*7.*up to")).to_be_visible()
    expect(page.get_by_role("link", name="TOOLS_CONSUMER")).to_have_count(0)
    page.get_by_label("System groups").check()
    expect(page.get_by_role("link", name="TOOLS_CONSUMER")).to_be_visible()
    page.get_by_role("button", name="Figures of all rows").click()
    expect(page.get_by_role("button", name="Figures of all rows")).to_be_enabled()
    page.get_by_role("link", name="billing").click()
    expect(page.get_by_role("heading", name="billing")).to_be_visible()
    expect(page.get_by_text("No member is online.")).to_be_visible()
    expect(row(page, "orders.*broker-a · 0.*3.*10.*7")).to_be_visible()


def test_members_are_shown_with_their_queues(page, dashboard, cluster, billing):
    with sync.PushConsumer("billing", {"orders": "*"}, namesrv=cluster.namesrv) as consumer:
        working = consumer.listen(lambda message: None)
        page.goto(f"{dashboard}/groups?group=billing")
        expect(page.get_by_role("table", name="Members")).to_contain_text("PYTHON")
        expect(page.get_by_role("table", name="Queues").get_by_role("row", name=re.compile(r"orders.*@\d+#"))).to_be_visible()
        working.cancel()


def test_a_reset_is_previewed_and_done(page, dashboard, billing):
    page.goto(f"{dashboard}/groups?group=billing")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Topic")).to_have_value("orders")
    dialog.get_by_label("Go on at").select_option("last")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("0 messages are consumed again, 7 are skipped.")
    expect(dialog.get_by_role("row", name=re.compile(r"broker-a · 0.*3.*10.*\+7"))).to_be_visible()
    assert set(billing.committed("billing", "orders").values()) == {3}
    reset = dialog.get_by_role("button", name="Reset offsets")
    expect(reset).to_be_disabled()
    dialog.get_by_role("textbox").fill("billing")
    reset.click()
    expect(page.get_by_text("goes on at the new offsets")).to_be_visible()
    expect(page.get_by_text("caught up", exact=True)).to_be_visible()
    assert set(billing.committed("billing", "orders").values()) == {10}


def test_a_reset_to_a_time_asks_for_the_time(page, dashboard, billing):
    page.goto(f"{dashboard}/groups?group=billing")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Go on at").select_option("time")
    dialog.get_by_label("First message stored").fill("2020-01-01T00:00:00")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("3 messages are consumed again, 0 are skipped.")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_reset_of_an_unknown_topic_is_refused_in_the_dialog(page, dashboard, billing):
    page.goto(f"{dashboard}/groups?group=billing")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("nosuch")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nosuch")
    page.problems.clear()  # the browser itself reports the answer 404


def test_read_only_offers_no_reset(page, cluster, dashboards, billing):
    page.goto(f"{dashboards(ClusterTarget(cluster.namesrv), read_only=True)}/groups?group=billing")
    expect(page.get_by_role("heading", name="billing")).to_be_visible()
    expect(page.get_by_role("button", name="Reset offsets")).to_have_count(0)


def test_hostile_names_are_text(page, dashboard, billing):
    def listed(route):
        told = route.fetch().json()
        told["groups"].append(
            {"name": HOSTILE, "kind": "normal", "enabled": True, "orderly": False, "max_retries": 1, "brokers": [HOSTILE]}
        )
        told["missing"] = {HOSTILE: HOSTILE}
        route.fulfill(json=told)

    def detail(route):
        told = route.fetch().json()
        told["member_rows"] = [
            {"client_id": HOSTILE, "address": HOSTILE, "language": HOSTILE, "queues": None, "waiting": None, "problem": HOSTILE}
        ]
        told["subscriptions"] = [{"topic": HOSTILE, "expression": HOSTILE}]
        told["queue_rows"][0].update(topic=HOSTILE, broker=HOSTILE, owner=HOSTILE)
        told["unknown"] = {HOSTILE: HOSTILE}
        told["members"] = 1
        route.fulfill(json=told)

    page.route("**/api/groups", listed)
    page.route("**/api/group?*", detail)
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.goto(f"{dashboard}/groups")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="billing").click()
    expect(page.get_by_role("table", name="Members")).to_contain_text(HOSTILE)
    expect(page.get_by_role("table", name="Queues").get_by_role("link", name=HOSTILE)).to_be_visible()
    expect(page.locator("main img")).to_have_count(0)


def test_a_thousand_groups_are_listed_and_a_broker_that_dies_makes_their_figures_unknown(page, dashboards):
    with LocalCluster() as cluster, sync.AdminClient(namesrv=cluster.namesrv) as admin:
        admin.create_groups([SubscriptionGroupConfig(f"group-{n:04}") for n in range(1000)])
        page.goto(f"{dashboards(ClusterTarget(cluster.namesrv))}/groups")
        expect(page.get_by_text("1000 in all")).to_be_visible()
        expect(row(page, "group-0000.*offline.*0.*caught up")).to_be_visible()
        assert page.locator("tbody tr").count() < 200
        cluster.kill_broker("broker-a")
        page.get_by_role("searchbox").fill("group-0999")
        expect(row(page, "group-0999.*unknown.*unknown")).to_be_visible()

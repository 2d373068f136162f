"""Pages that are filled, at the width of a phone and in both themes: nothing is cut off, and all text has enough contrast (AA)."""

import pytest
from playwright.sync_api import expect
from tests.browser.looks import looks_right, settled, too_wide
from tests.browser.populated import DEAD_GROUP, NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_filled_page_fits_a_phone_and_has_enough_contrast(open_phone, shown, name):
    page = open_phone()
    page.goto(shown.address(name))
    settled(page)
    looks_right(page)


@pytest.mark.parametrize("name", NAMES)
def test_a_filled_page_fits_a_desk_and_has_enough_contrast(open_page, shown, name):
    page = open_page()
    page.goto(shown.address(name))
    settled(page)
    looks_right(page)


@pytest.mark.parametrize("name", NAMES)
def test_a_filled_page_in_chinese_fits_a_phone(open_phone, shown, name):
    page = open_phone(locale="zh-CN")
    page.goto(shown.address(name))
    settled(page)
    assert too_wide(page) == []


def create_topic(page, shown):
    page.goto(shown.address("topics"))
    page.get_by_role("button", name="Create topic").click()


def refused_topic(page, shown):
    create_topic(page, shown)
    page.get_by_role("dialog").get_by_label("Topic").fill("orders")
    page.get_by_role("dialog").get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    page.problems.clear()  # the browser itself reports the answer 400


def change_topic(page, shown):
    page.goto(shown.address("topics-detail"))
    page.get_by_role("button", name="Change").click()
    page.get_by_role("dialog").get_by_label("Queues on each broker").fill("1")
    expect(page.get_by_role("dialog").get_by_role("status")).to_be_visible()


def delete_topic(page, shown):
    page.goto(shown.address("topics-detail"))
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("orders")


def reset_offsets(page, shown):
    page.goto(shown.address("groups-detail"))
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_role("dialog").get_by_label("Go on at").select_option("time")


def preview_of_a_reset(page, shown):
    page.goto(shown.address("groups-detail"))
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_role("dialog").get_by_role("button", name="Preview").click()
    expect(page.get_by_role("dialog").get_by_role("table")).to_be_visible()


def produce(page, shown):
    page.goto(shown.address("messages-found"))
    page.get_by_role("button", name="Send a test message").click()


def plan_of_a_replay(page, shown):
    page.goto(shown.address("dead_letters-group"))
    page.get_by_role("button", name="Choose all").click()
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("dialog").get_by_role("table")).to_be_visible()


def receipt_of_a_replay(page, shown):
    page.goto(shown.address("dead_letters-group"))
    page.get_by_role("row").get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("dialog", name="Receipt").get_by_role("table")).to_be_visible()


DIALOGS = (
    create_topic,
    refused_topic,
    change_topic,
    delete_topic,
    reset_offsets,
    preview_of_a_reset,
    produce,
    plan_of_a_replay,
    receipt_of_a_replay,
)


@pytest.mark.parametrize("dialog", DIALOGS, ids=lambda dialog: dialog.__name__)
def test_a_dialog_fits_a_phone_and_has_enough_contrast(open_phone, shown, dialog):
    page = open_phone()
    dialog(page, shown)
    expect(page.get_by_role("dialog")).to_be_visible()
    looks_right(page)


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_brokers_with_long_names_and_high_rates_fit_a_phone(open_phone, shown, language):
    page = open_phone(locale=language)

    def answer(route):
        told = route.fetch().json()
        for broker in told["cluster"]["brokers"]:
            broker |= {"name": "production-broker-07", "address": "192.168.100.100:10911", "in_rate": 9999, "out_rate": 9999}
        route.fulfill(json=told)

    page.route("**/api/overview", answer)
    page.route("**/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=""))
    page.goto(shown.address("overview"))
    settled(page)
    assert too_wide(page) == []


ALARMS = [
    ("no_brokers", "bad", {}),
    ("no_master", "bad", {"broker": "broker-b"}),
    ("away", "bad", {"broker": "broker-b", "address": "10.0.0.2:10911", "reason": "no answer from 10.0.0.2:10911 within 4 s"}),
    ("disk", "warn", {"broker": "broker-b", "address": "10.0.0.2:10911", "percent": 91}),
    ("not_writable", "bad", {"broker": "broker-b", "address": "10.0.0.2:10911"}),
    ("index_behind", "warn", {"broker": "broker-b", "address": "10.0.0.2:10911", "bytes": 1 << 30}),
    ("sends_waiting", "warn", {"broker": "broker-b", "address": "10.0.0.2:10911", "count": 4000}),
    ("slave_behind", "warn", {"broker": "broker-b", "address": "10.0.0.2:10911", "bytes": 1 << 30}),
]


def test_alarms_fit_a_phone_and_have_enough_contrast(open_phone, shown):
    page = open_phone()

    def answer(route):
        told = route.fetch().json()
        told["cluster"]["alarms"] = [{"kind": kind, "level": level, "values": values} for kind, level, values in ALARMS]
        broken = {
            **told["cluster"]["brokers"][0],
            "name": "broker-b",
            "address": "10.0.0.2:10911",
            "problem": "no answer",
            "disk_used": 0.91,
        }
        told["cluster"]["brokers"].append(broken)
        route.fulfill(json=told)

    page.route("**/api/overview", answer)
    page.route("**/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=""))
    page.goto(shown.address("overview"))
    expect(page.locator("main .notice")).to_have_count(len(ALARMS))
    settled(page)
    looks_right(page)


def test_a_followed_topic_fits_a_phone_and_has_enough_contrast(open_phone, shown):
    page = open_phone()
    page.goto(f"{shown.url}/messages?topic=orders&follow=1")
    expect(page.get_by_text("Live").last).to_be_visible()
    looks_right(page)


def test_the_login_fits_a_phone_and_has_enough_contrast(open_phone, secured_dashboard):
    page = open_phone()
    page.goto(secured_dashboard)
    page.get_by_label("Access key").fill("nobody")
    page.get_by_label("Secret key").fill("not it")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    looks_right(page)
    page.problems.clear()  # the browser itself reports the answer 401


def test_letters_that_were_replayed_are_marked(page, shown):
    receipt_of_a_replay(page, shown)
    page.keyboard.press("Escape")
    page.goto(f"{shown.url}/dead-letters?group={DEAD_GROUP}")
    expect(page.get_by_role("columnheader", name="State")).to_be_visible()
    expect(page.get_by_role("table")).to_contain_text("replayed")
    looks_right(page)

"""docs/guide/broker-settings.md against the settings there are: names, units and defaults."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.cli.config import APACHE_NAMES, KEYS, Settings
from sprocketmq.cli.serving import _broker_config
from sprocketmq.errors import ConfigError
from sprocketmq.storage.config import StoreConfig

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "broker-settings.md"
ROW = re.compile(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)
ROWS = {name: [cell.strip() for cell in cells] for name, *cells in ROW.findall(GUIDE.read_text())}
# What the command line gives a broker in another form than as a setting.
ELSEWHERE = {"root", "store", "broker_id", "take_over"}


def shown(value):
    return str(value).lower() if value is True or value is False else str(value)


def test_the_guide_lists_every_setting_and_nothing_else():
    assert list(ROWS) == list(KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_the_guide_tells_the_default(name):
    default = ROWS[name][1].strip("`")
    assert ("" if default == "(empty)" else default) == shown(getattr(Settings(), name))


@pytest.mark.parametrize(
    ("ending", "unit"),
    [("_bytes", "bytes"), ("_s", "seconds"), ("_ms", "milliseconds"), ("_hours", "hours"), ("_ratio", "part of the disk")],
)
def test_the_guide_tells_the_unit_that_the_name_says(ending, unit):
    named = [name for name in KEYS if name.endswith(ending)]
    assert named
    assert {ROWS[name][0] for name in named} == {unit}


@pytest.mark.parametrize("kind", [StoreConfig, BrokerConfig])
def test_every_field_of_a_broker_is_a_setting_with_the_same_default(kind):
    for one in fields(kind):
        if one.name not in ELSEWHERE:
            assert one.name in KEYS, one.name
            ours = one.default if one.default is not MISSING else None
            assert (getattr(Settings(), one.name) or None) == (ours or None) or ours is None, one.name


@pytest.mark.parametrize("name", sorted(set(KEYS) - {"host", "port", "namesrv_port", "log_level", "store", "namesrv", "advertise"}))
def test_every_setting_reaches_the_broker(name):
    usual = getattr(Settings(), name)
    other = {
        "flush_disk_type": "SYNC_FLUSH",
        "delete_when": "05",
        "message_delay_level": "1s 2m",
        "consumequeue_segment_bytes": 2000,
        "batchqueue_segment_bytes": 4600,
        "register_interval_s": 20.0,
    }.get(name) or (not usual if isinstance(usual, bool) else "other" if isinstance(usual, str) else usual / 2 if usual else 3)
    settings = Settings()
    settings.put(name, int(other) if KEYS[name] is int else other, "test")
    config = _broker_config(settings)
    reached = [getattr(part, name) for part in (config, config.store) if hasattr(part, name)]
    assert reached
    assert set(reached) == {getattr(settings, name)}


def test_the_guide_and_the_suggestions_agree_on_apaches_names():
    told = {name: ours for ours, cells in ROWS.items() for name in re.findall(r"`(\w+)`", cells[2])}
    told["listenPort"] = "port"  # of the broker; the nameserver's has the same name
    for name, ours in told.items():
        with pytest.raises(ConfigError, match=f"unknown key '{name}'; (it is called|write) {ours}\\b"):
            Settings().put(name, "", "test")
    assert set(APACHE_NAMES) <= set(told)

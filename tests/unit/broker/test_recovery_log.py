"""What the log says while a store is opened."""

import logging

from sprocketmq.broker.recovery_log import MAX_DAMAGED_LINES, PROGRESS_INTERVAL_S, RecoveryProgress, log_opened
from sprocketmq.clock import ManualClock
from sprocketmq.storage.log.recovery import DamagedRange, RecoveryReport


def test_a_long_recovery_writes_a_line_every_few_seconds(caplog):
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    progress = RecoveryProgress("/store", clock.monotonic)
    for step in range(1, 101):
        clock.advance(PROGRESS_INTERVAL_S / 50)
        progress(step * 1_000, 100_000)
    assert caplog.messages == [
        "store_recovering path=/store read_bytes=50000 total_bytes=100000 percent=50 took_s=5",
        "store_recovering path=/store read_bytes=100000 total_bytes=100000 percent=100 took_s=10",
    ]


def test_damage_is_a_warning_with_its_places_up_to_a_limit(caplog):
    damaged = [DamagedRange("/store/commitlog/0", start, start + 10) for start in range(0, 10_000, 100)]
    log_opened("/store", RecoveryReport(clean=False, records=7, damaged=damaged, log_end=10_000), is_new=False)
    assert caplog.messages[0] == "log_damaged path=/store/commitlog/0 log_offset=0 bytes=10"
    assert len(caplog.messages) == MAX_DAMAGED_LINES + 1
    assert caplog.records[-1].levelname == "WARNING"
    assert caplog.records[-1].fields.items() >= {"after": "a crash", "records": 7, "damaged": 100}.items()

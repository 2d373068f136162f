"""Names the tests of each promise in the README and the guides: a promise that is added or changed without its tests fails here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import sprocketmq
from sprocketmq import errors
from sprocketmq.broker.config import BrokerConfig
from sprocketmq.cli.app import main
from sprocketmq.protocol.bodies import SubscriptionGroupConfig
from sprocketmq.storage.store import StoreConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUARANTEES = (ROOT / "docs/guide/guarantees.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs/guide/cli.md").read_text(encoding="utf-8")

RETRIES = "unit/client/consume/test_retry_with_broker.py"
# Each promise by its first words, with its sentences and the tests of each sentence. "file::test" below tests/.
PROMISED: dict[str, dict[str, list[str]]] = {
    "Acknowledged means written.": {
        "A send is answered after its write to the log has returned.": [
            "unit/broker/test_send.py::test_sends_of_one_readiness_are_committed_once",
            "unit/storage/test_disk_errors.py::test_a_failed_commit_stores_nothing_and_the_next_one_works",
        ],
        "Killing the process loses no acknowledged message.": [
            "crash/test_kill.py::test_nothing_acknowledged_is_lost_by_kill_9",
            "unit/cli/test_serving.py::test_a_killed_server_loses_nothing_acknowledged",
        ],
        "The log is flushed to disk every half second (RocketMQ's ASYNC_FLUSH): a *power failure* can lose what was "
        "written since the last flush.": [
            "unit/test_readme_promises.py::test_the_figures_are_the_defaults",
            "unit/broker/test_sync_flush.py::test_asynchronous_flushing_waits_for_nothing",
            "crash/test_crash_points.py::test_every_crash_keeps_what_was_promised",
        ],
        "With `--set flush_disk_type=SYNC_FLUSH` a send is answered after the flush, and a power failure loses no "
        "acknowledged message either.": [
            "unit/broker/test_sync_flush.py::test_a_send_is_answered_when_the_disk_has_it",
            "unit/broker/test_sync_flush.py::test_messages_answered_for_are_there_after_a_crash",
            "crash/test_failing_disk.py::test_a_broker_acknowledges_nothing_after_the_kth_sync_of_its_log_failed",
        ],
    },
    "Damage stays local.": {
        "A damaged record costs only that record.": ["crash/test_damage.py::test_a_flipped_bit_costs_no_more_than_its_record"],
        "Queues, indexes and other derived files are rebuilt automatically.": [
            "crash/test_damage.py::test_a_derived_file_of_any_length_or_none_costs_nothing",
            "unit/storage/test_damaged_derived_files.py::test_any_damage_to_a_queue_file_is_repaired",
            "unit/storage/test_damaged_derived_files.py::test_any_damage_to_a_queue_file_of_a_store_whose_log_begins_later_is_repaired",
            "unit/storage/index/test_index_of_stores.py::test_damaged_index_files_are_made_anew",
        ],
        "How this is tested: [reliability](../internals/reliability.md).": [],
    },
    "A full disk stops writes, not reads.": {
        "Old segments expire after 72 hours, or earlier when space runs short.": [
            "unit/test_readme_promises.py::test_the_figures_are_the_defaults",
            "unit/broker/test_cleaning.py::test_a_round_deletes_what_expired_one_segment_at_a_time",
            "unit/storage/log/test_retention.py::test_old_segments_go_unexpired_when_the_disk_is_nearly_full",
        ],
        "When the disk is full, new messages are refused and reads are served; messages are accepted again as soon as there is space.": [
            "unit/broker/test_cleaning.py::test_sends_are_refused_on_a_full_disk_and_taken_again_without_a_restart",
            "crash/test_disk_full.py::test_a_disk_that_fills_up_is_refused_and_used_again",
        ],
    },
    "Delivery is at least once.": {
        "A consumer group receives every message; after a crash or a rebalance it may receive some again.": [
            "faults/test_consuming.py::test_a_group_handles_everything_whatever_happens_to_its_broker",
            "unit/client/consume/test_group_live.py::test_what_a_crashed_member_had_not_committed_is_consumed_by_the_others",
            "model/test_rebalance_model.py::test_whatever_members_do_nothing_is_lost_and_an_ordered_queue_is_with_one_of_them",
        ],
        "Make handlers idempotent.": [],
    },
    "Failed messages are retried, then dead-lettered.": {
        "A message that the handler rejects, or that it has not handled when it raises or times out, is delivered again "
        "after growing delays.": [
            "unit/client/consume/test_push_retry.py::test_a_handler_that_raises_has_everything_sent_back_but_what_it_called_done",
            "unit/client/consume/test_push_retry.py::test_a_handler_that_takes_too_long_is_told_and_its_messages_are_sent_back",
        ],
        "After 16 retries, unless the consumer sets another limit, a message is stored once in `%DLQ%group`.": [
            "unit/broker/test_retry.py::test_a_message_that_fails_too_often_becomes_one_dead_letter",
            "unit/test_readme_promises.py::test_the_figures_are_the_defaults",
            "crash/test_send_back.py::test_failing_messages_end_as_one_dead_letter_each_and_delayed_ones_come_once",
        ],
        "The other messages of the batch are not delivered again.": [
            f"{RETRIES}::test_each_failing_message_comes_again_up_to_the_limit_then_is_a_dead_letter_once_and_its_siblings_never",
        ],
    },
    "Every send ends once": {
        ", with its own result or an error, also inside a batch that fails part-way.": [
            "faults/test_sends.py::test_every_send_ends_once_and_as_it_says",
            "unit/client/send/test_producer.py::test_a_batch_that_fails_half_way_says_what_is_stored",
            "unit/client/send/test_producer.py::test_a_batch_has_one_result_for_each_message",
        ],
    },
    "Any call may be cut short": {
        ", by Ctrl-C in blocking code, by cancelling its task in asyncio.": [],
        "The client can be used and closed after it, and what it held is free again.": [
            "unit/net/test_interrupted_calls.py::test_a_blocking_call",
            "unit/net/test_interrupted_calls.py::test_a_send",
            "unit/client/test_cancelled_calls.py::test_starts_and_closes",
            "unit/client/test_cancelled_calls.py::test_sends",
            "unit/client/test_cancelled_calls.py::test_pulls",
            "unit/client/test_cancelled_calls.py::test_a_subscription_that_is_cancelled_leaves_the_queues_to_others",
        ],
        "A send that was cut short may be stored; messages that a consumer was about to hand out are handed out later.": [
            "unit/client/test_cancelled_calls.py::test_a_poll_that_is_cancelled_loses_nothing",
            "unit/client/test_cancelled_calls.py::test_batches_that_are_cancelled_come_again",
            "unit/net/test_interrupted_calls.py::test_a_poll",
            "unit/net/test_interrupted_calls.py::test_an_iteration",
        ],
    },
    "Each queue is in order.": {
        "Messages sent to one queue are read in the order they were stored.": [
            "unit/client/consume/test_consumer_push.py::test_a_single_member_consumes_every_queue_in_order",
            "unit/client/send/test_producer.py::test_submit_returns_before_anything_is_known_and_keeps_the_order",
            "crash/test_kill.py::test_nothing_acknowledged_is_lost_by_kill_9",
        ],
        "Across queues there is no order.": [],
    },
    "AutoBatch waits at most 10 ms by default.": {
        "A batch is sent when it is full or its first message is 10 ms old.": [
            "unit/client/send/test_batching.py::test_a_batch_leaves_when_its_delay_is_over_and_not_before",
            "unit/test_readme_promises.py::test_the_figures_are_the_defaults",
        ],
    },
    "An error says whether the message was stored.": {
        "`RetriableError`: not stored, try again.": [
            "unit/client/send/test_producer.py::test_a_broker_that_cannot_be_reached_fails_the_send_within_its_time",
            "unit/client/send/test_producer.py::test_a_refusal_that_may_pass_is_tried_on_another_broker",
        ],
        "`FatalError`: retrying does not help.": [
            "unit/test_readme_promises.py::test_every_error_says_whether_something_was_stored",
            "unit/client/send/test_producer.py::test_a_final_refusal_is_raised_at_once",
        ],
        "`MaybeStoredError`: the answer was lost, the message may or may not be stored.": [
            "unit/client/send/test_producer.py::test_no_answer_in_time_leaves_the_outcome_unknown",
            "unit/client/send/test_producer.py::test_connections_lost_at_every_try_leave_the_outcome_unknown",
            "faults/test_sends.py::test_every_send_ends_once_and_as_it_says",
        ],
    },
    "The Spark source neither loses nor repeats a row": {
        "when a query is stopped, or killed with `kill -9`, and restarted from its checkpoint, or when a broker or a "
        "worker is killed and restarted.": [
            "spark/test_source.py::test_queries_stopped_at_any_moment_lose_and_repeat_nothing",
            "spark/test_source.py::test_a_broker_that_restarts_under_a_query_is_read_on",
            "spark_faults/test_restarts.py::test_one_kill_of_each_kind_loses_and_repeats_no_row",
        ],
        "The sink delivers at least once, and on request gives each row an id that identifies repeats.": [
            "spark/test_sink.py::test_a_query_that_failed_on_its_way_sends_its_rows_again_with_the_same_ids",
            "spark/test_sink.py::test_a_stream_into_a_topic",
        ],
    },
    "Every resource is bounded": {
        ": buffers, waits, retries and messages in flight; each limit is an option.": [
            "unit/client/send/test_producer.py::test_submit_is_bounded_by_count_and_by_bytes",
            "unit/client/send/test_delivery.py::test_all_tries_together_take_no_longer_than_the_time_of_the_send",
            "unit/client/send/test_delivery.py::test_the_number_of_tries_is_the_callers",
            "unit/broker/test_sync_flush.py::test_sends_that_wait_are_bounded_by_their_number",
            "unit/broker/test_sync_flush.py::test_what_is_not_on_the_disk_is_bounded_by_its_bytes",
            "spark/test_memory.py::test_a_range_larger_than_the_limit_is_read_below_it",
        ],
        "A send that finds no room in time fails with an error that names the limit; a consumer stops pulling until there is room.": [
            "unit/client/send/test_producer.py::test_a_send_that_finds_no_room_in_its_time_says_so",
            "unit/client/consume/test_consumer_push.py::test_pulling_pauses_while_too_much_waits_and_goes_on_when_it_is_consumed",
        ],
    },
}

# Promises outside of that list, by page, word for word.
ELSEWHERE: dict[str, dict[str, list[str]]] = {
    "README.md": {
        "## Ten lines": [
            "unit/test_examples.py::test_the_readmes_ten_lines_run",
            "unit/cli/test_docs.py::test_the_blocks_of_a_page_run_in_their_order",
        ],
        "The same topic in Spark": ["spark/test_examples.py::test_the_readmes_spark_program_runs"],
        "runs nameserver and broker inside your process, on free ports, and removes them at the end of the block": [
            "unit/embedded/test_local_cluster.py::test_a_cluster_takes_and_returns_messages_and_leaves_no_trace"
        ],
        "the fixture `rocketmq` is there as soon as SprocketMQ is installed. It starts a fresh broker": [
            "unit/test_examples.py::test_the_readmes_test_passes",
            "unit/testing/test_plugin.py::test_each_test_gets_a_cluster_of_its_own",
        ],
        "in well under 200 ms": ["unit/broker/test_server.py::test_a_start_is_quick"],
        "[examples](examples)": [
            "unit/test_examples.py::test_an_example_runs_and_says_something",
            "spark/test_examples.py::test_a_topic_is_read_as_a_table_and_in_sql",
        ],
    },
    "docs/guide/cli.md": {
        "The line is printed when the broker accepts traffic; scripts wait for it. SIGTERM and SIGINT (Ctrl-C) stop it "
        "cleanly with exit code 0; `kill -9` loses no acknowledged message.": [
            "unit/cli/test_serving.py::test_serve_says_when_it_is_ready_takes_traffic_and_stops_cleanly_on_a_signal",
            "unit/cli/test_serving.py::test_a_killed_server_loses_nothing_acknowledged",
        ],
        "copy a topic into a Parquet table, each message exactly once; later runs add what is new": [
            "spark/test_land.py::test_a_topic_lands_once_and_any_reader_of_parquet_sees_it",
            "unit/spark/test_land.py::test_kill_minus_nine_of_a_real_process",
        ],
        "how far behind a table, a query or a consumer group is": ["unit/spark/test_lag.py::test_the_command_prints_a_table_or_json"],
        "send dead letters back to their original topics": ["spark/test_replay.py::test_dead_letters_go_back_to_where_they_came_from"],
        "compare every queue and index entry of a store with its log": [
            "unit/spark/test_audit.py::test_stores_of_apaches_broker_are_in_order"
        ],
        "rebuild queues and key index from the log": [
            "spark/test_store_jobs.py::test_a_store_with_everything_in_it_is_made_anew_and_is_in_order"
        ],
        "The resulting tables and topic are compared with the source data": [
            "spark/test_demo.py::test_the_demo_passes_its_own_checks_and_leaves_a_table_a_plot_and_a_report"
        ],
        "Every command that prints results has `--json`": ["unit/test_readme_promises.py::test_every_command_is_there_and_has_json"],
        "exit codes are 0 (done), 1 (failed), 2 (wrong usage)": ["unit/test_readme_promises.py::test_exit_codes_are_what_the_guide_says"],
    },
    "docs/guide/guarantees.md": {
        "Without them `serve` listens on the loopback interface only": [
            "unit/cli/test_serving.py::test_settings_that_cannot_be_are_explained",
            "unit/cli/test_serving_security.py::test_other_machines_get_in_only_with_tls_and_logins",
        ],
    },
}

NAMES = sorted({name for page in (PROMISED, ELSEWHERE) for texts in page.values() for names in texts.values() for name in names})


@cache
def defined_in(file: str) -> dict[str, bool]:
    """Return the tests of a file, and whether each is left to `make test-long`."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found[node.name] = any(ast.unparse(decorator) == "pytest.mark.long" for decorator in node.decorator_list)
    return found


def promises(page: str, heading: str) -> dict[str, str]:
    """Return the promises below a heading: the words in bold, and the rest of the item on one line."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    items = [" ".join(item.split("\n\n")[0].split()) for item in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]
    return {match[1]: match[2] for match in (re.fullmatch(r"\*\*(.+?)\*\*(.*)", item) for item in items) if match}


def joined(sentences: Iterable[str]) -> str:
    return "".join(sentence if sentence[0] in ",:" else f" {sentence}" for sentence in sentences)


def test_every_promise_of_the_guide_is_here_word_for_word() -> None:
    found = promises(GUARANTEES, "Promises")
    assert list(found) == list(PROMISED)
    for words, rest in found.items():
        assert rest == joined(PROMISED[words]), f"the promise {words!r} has changed: name the tests of what it says now"


def test_the_readme_promises_in_the_words_of_the_guide() -> None:
    found = promises(README, "What it promises")
    assert len(found) >= 6
    for words, rest in found.items():
        assert rest == joined(sentence for sentence in PROMISED[words] if sentence in rest), (
            f"{words!r} differs from docs/guide/guarantees.md"
        )


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_a_readme_is_short(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 150


def test_both_readmes_have_the_same_structure_and_code() -> None:
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    for pattern in (r"^#+ ", r"^\|", r"^- \*\*", r"^```\w+$", r"\]\((?!README)[^)]+\)"):
        assert len(re.findall(pattern, README, re.MULTILINE)) == len(re.findall(pattern, chinese, re.MULTILINE)), pattern
    english_code, chinese_code = (
        [re.sub(r"  +#.*", "", block) for block in re.findall(r"```\w+\n.*?```", page, re.DOTALL)] for page in (README, chinese)
    )
    assert english_code == chinese_code


@pytest.mark.parametrize(("page", "words"), [(page, words) for page, texts in ELSEWHERE.items() for words in texts])
def test_what_is_promised_in_other_places_still_stands_there(page: str, words: str) -> None:
    assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("name", NAMES)
def test_the_test_of_a_promise_is_there_and_make_test_runs_it(name: str) -> None:
    file, _, function = name.partition("::")
    tests = defined_in(file)
    assert function in tests, f"{name} is gone: name the test of its promise"
    assert not tests[function], f"{name} is only run by `make test-long`"


def test_the_figures_are_the_defaults(tmp_path: Path) -> None:
    assert StoreConfig(tmp_path).file_reserved_hours == 72
    assert BrokerConfig(store=StoreConfig(tmp_path)).flush_interval_s == 0.5
    assert StoreConfig(tmp_path).flush_disk_type == "ASYNC_FLUSH"
    assert sprocketmq.Batching().max_delay_ms == 10
    assert SubscriptionGroupConfig("g").retry_max_times == 16


def test_every_error_says_whether_something_was_stored() -> None:
    # Wrong arguments, and bytes no format allows, are refused before anything is sent or stored.
    bases = (errors.RetriableError, errors.FatalError, errors.MaybeStoredError, errors.ConfigError, errors.ProtocolError)
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.SprocketError) and kind is not errors.SprocketError:
            assert sum(issubclass(kind, base) for base in bases) == 1, f"{name} does not say whether something was stored"


def commands_of_the_guide() -> list[str]:
    table = COMMANDS.partition("\nEvery command")[0]
    commands = []
    for cell in re.findall(r"^\| (`sprocketmq.*?) \|(?= )", table.replace("\\|", "/"), re.MULTILINE):
        for command in re.findall(r"`sprocketmq ([^`]+)`", cell):
            words = [word.split("/") for word in command.split() if not word.isupper()]
            commands += [" ".join([*(options[0] for options in words[:-1]), last]) for last in words[-1]]
    return commands


SERVERS = {"serve", "namesrv", "broker", "dashboard", "proxy"}


def test_the_table_of_commands_is_read_whole() -> None:
    commands = commands_of_the_guide()
    assert len(commands) == 45
    assert {"serve", "topic status", "group reset", "consume", "pipeline rebuild-index", "bench batch", "demo"} <= {*commands}


@pytest.mark.parametrize("command", commands_of_the_guide())
def test_every_command_is_there_and_has_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Servers print one line, which is for programs as it is."""
    assert main([*command.split(), "--help"]) == 0
    assert ("--json" in capsys.readouterr().out) == (command not in SERVERS)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["topic", "list", "--help"], 0),
        (["topic", "list", "--namesrv", "127.0.0.1:1"], 1),
        (["inspect", "nothing-here"], 2),
        (["topic", "lsit"], 2),
        (["serve", "--set", "no_such_setting=1"], 2),
    ],
)
def test_exit_codes_are_what_the_guide_says(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    assert (capsys.readouterr().err == "") == (code == 0)

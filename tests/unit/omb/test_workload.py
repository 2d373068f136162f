"""Workload files: what is read, what is refused and how, and the workloads that come with the package."""

import pytest

from sprocketmq.errors import ConfigError
from sprocketmq.omb import workload as workloads
from sprocketmq.omb.assignment import plans_of, topics_of
from sprocketmq.omb.payloads import keys_of, payloads_of
from sprocketmq.omb.workload import Workload, load, packaged, read


def test_a_file_of_the_benchmark_is_read():
    found = read(
        b"""
name: 1 topic / 100 partitions
topics: 1
partitionsPerTopic: 100
messageSize: 1024
useRandomizedPayloads: true
randomBytesRatio: 0.5
randomizedPayloadPoolSize: 100
keyDistributor: "NO_KEY"
subscriptionsPerTopic: 1
consumerPerSubscription: 4
producersPerTopic: 4
producerRate: 1000000
consumerBacklogSizeGB: 0
testDurationMinutes: 15
warmupDurationMinutes: 1
logClientTrace: false
""",
        "w.yaml",
    )
    assert (found.partitions_per_topic, found.producers_per_topic, found.consumer_per_subscription) == (100, 4, 4)
    assert (found.producer_rate, found.measured_s, found.warm_up_s) == (1_000_000, 900, 60)


def test_keys_without_effect_are_named(caplog):
    read(b"messageSize: 10\nacceptableBacklog: 5\nlogClientTrace: true\nproducerStartRate: 0", "w.yaml")
    assert sorted(record.getMessage() for record in caplog.records) == [
        "w.yaml: acceptableBacklog has no effect: no rate is searched for; producerRate 0 is the maximum",
        "w.yaml: logClientTrace has no effect: clients write no trace to a log",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topics: [", "w.yaml is not YAML"),
        ("\x00", "w.yaml is not YAML"),
        ("", "w.yaml is not a workload: it must be lines such as 'messageSize: 1024'"),
        ("- 1", "w.yaml is not a workload"),
        ("messageSiz: 3", "there is no key 'messageSiz': did you mean messageSize?"),
        ("messageSize: 10\nzzz: 1", "there is no key 'zzz': remove it"),
        ("topics: 1", "messageSize is missing: add the length of each body"),
        ("messageSize: big", "Expected int, got str - at messageSize: correct the value"),
        ("messageSize: 7", "messageSize must be from 8 to 4,194,304, not 7"),
        ("messageSize: 99999999", "messageSize must be from 8 to 4,194,304"),
        ("messageSize: 10\ntopics: 0", "topics must be from 1 to 1,000,000, not 0"),
        ("messageSize: 10\nproducerRate: -1", "producerRate must be from 0"),
        ("messageSize: 10\nproducerRate: .nan", "producerRate must be from 0"),
        ("messageSize: 10\ntestDurationMinutes: .inf", "testDurationMinutes must be from 0"),
        ("messageSize: 10\nproducersPerTopic: 0", "producersPerTopic is 0: nothing would be sent"),
        ("messageSize: 10\ntopics: 10000\npartitionsPerTopic: 10000", "topics x partitionsPerTopic is 100,000,000: at most 1,000,000"),
        ("messageSize: 10\ntopics: 100000\nproducersPerTopic: 10", "producers and consumers do not fit one machine"),
        ("messageSize: 10\nmessageSizeMax: 9", "messageSizeMax 9 is less than messageSize 10: exchange them"),
        ("messageSize: 10\nkeyDistributor: SOME", "Invalid enum value 'SOME' - at keyDistributor"),
        ("messageSize: 10\nconsumerBacklogSizeGB: 1\nsubscriptionsPerTopic: 0", "consumerBacklogSizeGB needs consumers"),
        (
            "messageSize: 1024\nuseRandomizedPayloads: true\nrandomizedPayloadPoolSize: 1000000",
            "randomizedPayloadPoolSize 1,000,000 needs 977 MiB of memory in each worker, and at most 32 MiB are possible: set it to 32,768",
        ),
        (
            "messageSize: 1024\nuseRandomizedPayloads: true\nrandomizedPayloadPoolSize: 1000000000",
            "must be from 1 to 1,000,000, not 1,000,000,000",
        ),
        ("messageSize: " + "[" * 3000, "w.yaml is not YAML"),
    ],
)
def test_what_is_wrong_with_a_workload_is_said_with_its_key(text, complaint):
    with pytest.raises(ConfigError) as raised:
        read(text.encode(), "w.yaml")
    assert complaint in str(raised.value)


def test_workloads_that_are_not_there_are_named_with_what_is_near(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 1-topic-16-partitions-1kb"):
        load("1-topic-16-partition-1kb")
    with pytest.raises(ConfigError, match="--list shows those"):
        load("zzz")
    with pytest.raises(ConfigError, match=r"No such file or directory: give the path"):
        load(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("name", packaged())
def test_each_workload_of_the_package_can_be_run(name):
    short, workload = load(name)
    assert short == name
    assert workload.name
    assert payloads_of(workload, None)


def test_each_throughput_workload_has_a_mixed_form():
    uniform = [name for name in packaged() if not name.endswith("-mixed") and not name.startswith("latency")]
    assert len(uniform) >= 7
    for name in uniform:
        plain, mixed = load(name)[1], load(f"{name}-mixed")[1]
        assert mixed.message_size < plain.message_size < mixed.message_size_max
        assert mixed.mean_bytes == plain.mean_bytes
        assert mixed.tags
        assert keys_of(mixed)
        assert (mixed.topics, mixed.partitions_per_topic, mixed.producer_rate) == (
            plain.topics,
            plain.partitions_per_topic,
            plain.producer_rate,
        )


def test_bodies_have_the_sizes_of_the_workload_and_are_the_same_in_every_run(tmp_path):
    mixed = Workload(message_size=512, message_size_max=1536, use_randomized_payloads=True, randomized_payload_pool_size=300)
    bodies = payloads_of(mixed, tmp_path)
    assert len(bodies) == 300
    assert 512 <= min(map(len, bodies)) < 600
    assert 1448 < max(map(len, bodies)) <= 1536
    assert bodies == payloads_of(mixed, tmp_path)
    (tmp_path / "p.json").write_bytes(b"0123456789")
    assert payloads_of(Workload(message_size=10, payload_file="p.json"), tmp_path) == (b"0123456789",)
    with pytest.raises(ConfigError, match="has 10 bytes, and messageSize is 11: make them equal"):
        payloads_of(Workload(message_size=11, payload_file="p.json"), tmp_path)
    with pytest.raises(ConfigError, match=r"none\.json: No such file or directory: correct the path"):
        payloads_of(Workload(message_size=11, payload_file="none.json"), tmp_path)


def test_producers_and_consumers_are_dealt_out_to_all_workers():
    workload = Workload(
        message_size=10, topics=3, producers_per_topic=2, subscriptions_per_topic=2, consumer_per_subscription=1, producer_rate=600
    )
    topics = topics_of(workload, "r")
    plans = plans_of(
        workload, topics, driver="d", config={}, payloads=(b"x" * 10,), keys=(), producer_workers=4, consumer_workers=2, report_s=1.0
    )
    producers = [plan for plan in plans if plan.producers]
    assert sorted(topic for plan in producers for topic in plan.producers) == sorted(topics * 2)
    assert sum(plan.rate for plan in producers) == pytest.approx(600)
    assert all(plan.rate == 100 * len(plan.producers) for plan in producers)
    consumers = [one for plan in plans for one in plan.consumers]
    assert len(consumers) == 6
    assert len({(one.topic, one.name) for one in consumers}) == 6


def test_limits_are_those_of_one_line_to_a_worker():
    assert workloads.MAX_POOL_BYTES * 4 // 3 < 128 << 20

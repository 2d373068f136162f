"""An executor with another version of sprocketmq than the driver is told so before it reads anything else."""

import pytest
from pyspark import cloudpickle

from sprocketmq import __version__
from sprocketmq.spark import RocketMQStoreDataSource, same_version
from sprocketmq.spark.errors import explain
from sprocketmq.spark.same_version import VersionMismatch, check_driver_version
from sprocketmq.spark.sink.data_sink import BatchSink, StreamSink
from sprocketmq.spark.source.batch_reader import BatchReader
from sprocketmq.spark.source.options import parse_options
from sprocketmq.spark.source.topic_stream import TopicStream

READ = {"nameserver": "127.0.0.1:1", "subscribe": "orders"}

# Sinks connect when they are made with arguments.
MADE_BY_DRIVERS = {
    "a read of topics": lambda path: BatchReader(parse_options(READ, streaming=False)),
    "a stream of topics": lambda path: TopicStream(parse_options(READ, streaming=True)),
    "a write": lambda path: BatchSink.__new__(BatchSink),
    "a stream's write": lambda path: StreamSink.__new__(StreamSink),
    "a read of a store": lambda path: RocketMQStoreDataSource({"path": str(path)}).reader(None),
}


@pytest.mark.parametrize("made", MADE_BY_DRIVERS)
def test_another_version_in_an_executor_is_one_sentence_with_both(monkeypatch, tmp_path, made):
    pickled = cloudpickle.dumps(MADE_BY_DRIVERS[made](tmp_path))
    monkeypatch.setattr(same_version, "__version__", "99.1")
    with pytest.raises(VersionMismatch) as caught:
        cloudpickle.loads(pickled)
    assert str(caught.value).startswith(f"the driver has sprocketmq {__version__}, and an executor has 99.1: install the same version")
    assert explain(cloudpickle.loads(cloudpickle.dumps(caught.value))) == str(caught.value)


def test_the_same_version_reads_what_the_driver_made(tmp_path):
    for made in MADE_BY_DRIVERS.values():
        one = made(tmp_path)
        read = cloudpickle.loads(cloudpickle.dumps(one))
        assert type(read) is type(one)
        assert vars(read).keys() == vars(one).keys()


def test_tasks_of_jobs_compare_versions():
    check_driver_version(__version__)
    with pytest.raises(VersionMismatch, match=r"the driver has sprocketmq 0\.0\.1,"):
        check_driver_version("0.0.1")

"""Apache's ``broker.conf`` and ``namesrv.conf`` as configuration files."""

from pathlib import Path

import pytest

from sprocketmq import sync
from sprocketmq.cli.apache_names import FIXED, NAMESRV_SETTINGS, REFUSED, SETTINGS
from sprocketmq.cli.app import main
from sprocketmq.cli.broker_conf import SPECIAL, is_broker_conf
from sprocketmq.cli.config import KEYS, Settings
from sprocketmq.errors import ConfigError

NAMES = [line.split() for line in (Path(__file__).parents[2] / "fixtures/settings/apache-5.5.0.txt").read_text().splitlines()]
# As it stands in many guides, with the sizes and ratios of a small machine.
USUAL = """
#集群名字
brokerClusterName=rocketmq-cluster
brokerName=broker-b
brokerPermission = 6
#Broker 对外服务的监听端口
listenPort=0
defaultTopicQueueNums=4
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=false
deleteWhen=05
fileReservedTime=120
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=300001
diskMaxUsedSpaceRatio=88
storePathRootDir={store}
storePathCommitLog={store}/commitlog
storePathConsumeQueue={store}/consumequeue/
storePathIndex={store}/index
storeCheckpoint={store}/checkpoint
abortFile={store}/abort
maxMessageSize=65536
flushIntervalCommitLog=250
flushConsumerOffsetInterval=3000
flushDelayOffsetInterval=10000
maxFilterMessageSize=8000
flushDiskType=SYNC_FLUSH
transientStorePoolEnable=false
namesrvAddr=127.0.0.1:{nameserver};192.0.2.7:9876
"""


def read(tmp_path, text, name="broker.conf", **options):
    (tmp_path / name).write_text(text, encoding="utf-8")
    settings = Settings()
    settings.put_file(tmp_path / name, **options)
    return settings


def test_each_line_becomes_a_setting_in_its_unit(tmp_path):
    settings = read(tmp_path, USUAL.format(store="/data/mq", nameserver=9876))
    assert {name: getattr(settings, name) for name in settings.explicit} == {
        "cluster_name": "rocketmq-cluster",
        "broker_name": "broker-b",
        "port": 0,
        "default_topic_queues": 4,
        "broker_permission": 6,
        "auto_create_topic": True,
        "auto_create_group": False,
        "delete_when": "05",
        "file_reserved_hours": 120.0,
        "commitlog_segment_bytes": 1 << 20,
        "consumequeue_segment_bytes": 300_020,
        "disk_max_used_ratio": 0.88,
        "store": "/data/mq",
        "max_message_bytes": 65536,
        "flush_interval_s": 0.25,
        "save_offsets_interval_s": 3.0,
        "max_filter_units": 400,
        "flush_disk_type": "SYNC_FLUSH",
        "namesrv": "127.0.0.1:9876;192.0.2.7:9876",
    }


SLAVE = """
brokerRole=SLAVE
brokerId=2
listenPort=10921
haMasterAddress=10.0.0.1:10912
inSyncReplicas=2
slaveTimeout=1500
slaveReadEnable=false
haSendHeartbeatInterval=2000
haHousekeepingInterval=9000
haTransferBatchSize=32768
haMaxGapNotInSync=1048576
accessMessageInMemoryMaxRatio=20
haFlowControlEnable=true
"""


def test_the_settings_of_replication_are_understood(tmp_path):
    settings = read(tmp_path, SLAVE)
    assert {name: getattr(settings, name) for name in settings.explicit} == {
        "role": "SLAVE",
        "broker_id": 2,
        "port": 10921,
        "ha_port": 10922,
        "ha_master_address": "10.0.0.1:10912",
        "in_sync_replicas": 2,
        "slave_timeout_s": 1.5,
        "slave_read_enable": False,
        "ha_heartbeat_s": 2.0,
        "ha_housekeeping_s": 9.0,
        "ha_batch_bytes": 32768,
        "ha_max_gap_not_in_sync": 1 << 20,
        "access_message_in_memory_max_ratio": 20,
        "ha_max_bytes_per_s": 100 << 20,
    }


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("listenPort=1", None),
        ("brokerRole=ASYNC_MASTER", 10912),
        ("brokerRole=ASYNC_MASTER\nlistenPort=0", 0),
        ("brokerRole=SYNC_MASTER\nlistenPort=11000\nhaListenPort=12000", 12000),
        ("haListenPort=12000", 12000),
    ],
)
def test_the_port_for_slaves_is_opened_when_a_role_or_the_port_is_given(tmp_path, text, port):
    assert read(tmp_path, text).ha_port == port


def test_the_limit_of_the_stream_needs_its_switch(tmp_path):
    assert read(tmp_path, "haFlowControlEnable=true\nmaxHaTransferByteInSecond=1048576").ha_max_bytes_per_s == 1 << 20
    assert read(tmp_path, "haFlowControlEnable=false").ha_max_bytes_per_s is None


def test_a_server_runs_with_it_and_the_command_line_beats_it(serving, tmp_path):
    (tmp_path / "broker.conf").write_text(USUAL.format(store=tmp_path / "store", nameserver=9876).replace(";192.0.2.7:9876", ""))
    server = serving("serve", "--config", str(tmp_path / "broker.conf"), "--namesrv-port", "0", "--set", "brokerName=broker-z")
    assert server.address["store"] == str(tmp_path / "store")
    with sync.AdminClient(namesrv=server.address["namesrv"]) as admin:
        assert list(admin.cluster().broker_addr_table) == ["broker-z"]
        assert admin.broker_runtime(server.address["broker"])["flushDiskType"] == "SYNC_FLUSH"
    assert server.end() == (0, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brokerNmae=b", "line 1: unknown key 'brokerNmae'; did you mean brokerName?"),
        ("listenPort=1\nmapedFileSizeCommitLog=1", "line 2: unknown key 'mapedFileSizeCommitLog'; did you mean mappedFileSizeCommitLog?"),
        ("listenPort=1\ncolour=red", "line 2: unknown key 'colour'; it is not a setting of Apache RocketMQ 5.5.0"),
        ("sendMessageThreadPoolNums=16", "sendMessageThreadPoolNums has no effect here: requests are handled on one event loop"),
        ("transientStorePoolEnable=true", "transientStorePoolEnable can only be false here, not 'true': messages are written to"),
        ("maxMessageSize=4M", "maxMessageSize must be a whole number, not '4M'"),
        ("autoCreateTopicEnable=yes", "autoCreateTopicEnable must be true or false, not 'yes'"),
        ("listenPort=99999", "listenPort: port must be from 0"),
        ("listenPort=1\nlistenPort=2", "line 2: listenPort was given another value in line 1; keep one of them"),
        ("storePathRootDir=/a\nstorePathCommitLog=/b/commitlog", "storePathCommitLog can only be /a/commitlog"),
        ("storeCheckpoint=/a/checkpoint", "storeCheckpoint can only be storePathRootDir/checkpoint"),
        ("brokerIP1=10.0.0.1\nbrokerIP2=10.0.0.2", "brokerIP2 can only be the address of brokerIP1"),
        ("maxHaTransferByteInSecond=1048576", "maxHaTransferByteInSecond takes effect with haFlowControlEnable = true only"),
        ("haFlowControlEnable=on", "haFlowControlEnable must be true or false, not 'on'"),
        ("kvConfigPath=/a/namesrv/kvConfig.json", "kvConfigPath is a setting of nameservers"),
        ("storePathRootDir=C:\\users", "line 1: \\u needs four hexadecimal digits"),
    ],
)
def test_a_line_that_cannot_be_followed_is_refused_by_name(tmp_path, text, words):
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    assert str(tmp_path / "broker.conf") in str(refused.value)


def test_all_problems_of_a_file_are_told_at_once(tmp_path, capfd):
    (tmp_path / "broker.conf").write_text("listenPort=x\naclEnable=true\nbrokerName=a\nabc=1\n")
    assert main(["serve", "--config", str(tmp_path / "broker.conf")]) == 2
    first, *lines = capfd.readouterr().err.splitlines()
    assert first == f"sprocketmq: configuration file {tmp_path}/broker.conf: 3 lines cannot be followed"
    assert [line.split()[:2] for line in lines] == [["line", "1:"], ["line", "2:"], ["line", "4:"]]


def test_a_nameservers_file_sets_the_nameserver(tmp_path):
    settings = read(
        tmp_path, "listenPort=9877\nbindAddress=127.0.0.2\nkvConfigPath=/data/namesrv/kvConfig.json", "n.conf", for_namesrv=True
    )
    assert (settings.namesrv_port, settings.host, settings.store) == (9877, "127.0.0.2", "/data")
    with pytest.raises(ConfigError, match=r"must end with namesrv/kvConfig\.json, not '/data/kv\.json'"):
        read(tmp_path, "kvConfigPath=/data/kv.json", for_namesrv=True)
    with pytest.raises(ConfigError, match="brokerName is a setting of brokers"):
        read(tmp_path, "brokerName=a", for_namesrv=True)


@pytest.mark.parametrize(
    ("name", "text", "apache"),
    [
        ("broker.conf", "brokerName=a", True),
        ("broker.p", "brokerName=a", True),
        ("broker.toml", "brokerName=a", False),
        ("settings.conf", 'broker_name = "a"', False),
        ("settings", "port = 0", False),
        ("empty.conf", "", False),
        ("misspelt.conf", "brokerNmae=a", True),
        ("misspelt", "brokerNmae=a", False),
    ],
)
def test_the_format_of_a_file_is_told_by_its_name_and_its_keys(name, text, apache):
    assert is_broker_conf(Path(name), text) is apache


def test_serve_listens_where_namesrvaddr_names_this_machine_and_registers_at_the_others_too(serving, tmp_path):
    other = serving("namesrv", "--port", "0")
    (tmp_path / "b.conf").write_text(
        f"namesrvAddr=127.0.0.1:9876;{other.address['namesrv']}\nlistenPort=0\nstorePathRootDir={tmp_path}/s\n"
    )
    server = serving("serve", "--config", str(tmp_path / "b.conf"), "--namesrv-port", "0")
    for address in (server.address["namesrv"], other.address["namesrv"]):
        with sync.AdminClient(namesrv=address) as admin:
            assert admin.cluster().broker_addr_table["broker-a"].broker_addrs == {0: server.address["broker"]}
    assert server.end() == (0, "")
    assert other.end() == (0, "")


def test_serve_has_no_nameserver_on_another_machine(tmp_path, capfd):
    (tmp_path / "b.conf").write_text("namesrvAddr=192.0.2.7:9876\n")
    assert main(["serve", "--config", str(tmp_path / "b.conf")]) == 2
    assert "192.0.2.7:9876 is none of this machine's addresses: run `sprocketmq broker`" in capfd.readouterr().err


def test_every_setting_of_apache_is_understood():
    known = (SETTINGS, FIXED, REFUSED, SPECIAL, NAMESRV_SETTINGS)
    assert [name for name, _ in NAMES if not any(name in table for table in known)] == []
    once = [*SETTINGS, *FIXED, *REFUSED, *SPECIAL]
    assert len(set(once)) == len(once)
    outdated = {"storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile"}  # in guides, no longer in 5.5.0
    assert set(once) - {name for name, _ in NAMES} == outdated


def test_every_name_with_a_setting_of_ours_has_one_that_exists():
    assert {setting.name for table in (SETTINGS, NAMESRV_SETTINGS) for setting in table.values()} <= set(KEYS)

"""LocalCluster in a thread and in child processes."""

import asyncio
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from sprocketmq import Message, Producer, PullConsumer, sync
from sprocketmq.embedded import ClusterFailed, LocalCluster
from sprocketmq.errors import ClientClosed, ConfigError, ForkedClient, PortInUse, RetriableError, StoreLocked, StoreNotWritable
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.message import SendStatus
from sprocketmq.storage.store import MessageStore
from sprocketmq.testing import wait_until


def send(cluster, *bodies, topic="orders"):
    with sync.Producer("pg", namesrv=cluster.namesrv) as producer:
        return [producer.send(Message(topic, body)) for body in bodies]


def bodies(cluster, count, topic="orders"):
    return sorted(m.body for m in cluster.messages(topic, count=count))


def test_a_cluster_takes_and_returns_messages_and_leaves_no_trace():
    with LocalCluster() as mq:
        send(mq, b"one", b"two")
        assert bodies(mq, 2) == [b"one", b"two"]
        store = mq.store
        assert (store / "commitlog").is_dir()
    assert not store.exists()
    wait_until(lambda: not any(t.name == "sprocketmq-cluster" for t in threading.enumerate()))


async def test_async_with_starts_and_stops_it_too():
    async with LocalCluster() as mq, Producer("pg", namesrv=mq.namesrv) as producer:
        result = await producer.send(Message("orders", b"one"))
        async with PullConsumer("cg", namesrv=mq.namesrv) as consumer:
            (queue,) = [q for q in await consumer.queues("orders") if q.queue_id == result.queue_id]
            assert [m.body for m in (await consumer.pull(queue, 0)).messages] == [b"one"]


def test_a_given_store_is_kept_and_found_again(tmp_path):
    with LocalCluster(tmp_path / "store") as mq:
        send(mq, b"one")
    with LocalCluster(tmp_path / "store") as mq:
        send(mq, b"two")
        assert bodies(mq, 2) == [b"one", b"two"]
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_a_killed_cluster_loses_nothing_acknowledged(tmp_path):
    cluster = LocalCluster(tmp_path).start()
    send(cluster, b"one", b"two")
    cluster.kill()
    with LocalCluster(tmp_path) as mq:
        assert bodies(mq, 2) == [b"one", b"two"]


@pytest.mark.parametrize("in_process", [True, False])
def test_a_cluster_flushes_before_it_answers_when_told_to_and_has_batch_queues(in_process):
    with LocalCluster(flush_disk_type="SYNC_FLUSH", in_process=in_process) as mq:
        mq.create_topic("batches", queues=1, attributes={"queue.type": "BatchCQ"})
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            results = producer.send_batch([Message("batches", b"%d" % n) for n in range(3)])
            assert producer.send(Message("batches", b"3", wait_store_ok=False)).queue_offset == 3
        assert [result.queue_offset for result in results] == [0, 1, 2]
        assert bodies(mq, 4, "batches") == [b"0", b"1", b"2", b"3"]
        with sync.AdminClient(namesrv=mq.namesrv) as admin:
            assert admin.broker_runtime(mq.brokers[0])["flushDiskType"] == "SYNC_FLUSH"
        assert (mq.store / "batchconsumequeue/batches").is_dir()


@pytest.mark.parametrize("in_process", [True, False])
def test_a_cluster_has_the_delay_levels_it_is_given(in_process):
    with LocalCluster(message_delay_level="1s 1d", in_process=in_process) as mq:
        mq.create_topic("later", queues=1)
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            producer.send(Message("later", b"tomorrow", delay_level=2))
            producer.send(Message("later", b"soon", delay_level=1))
        assert bodies(mq, 1, "later") == [b"soon"]
    with pytest.raises(ConfigError, match="message_delay_level"):
        LocalCluster(message_delay_level="soon", in_process=in_process)


def test_a_flush_mode_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="ASYNC_FLUSH or SYNC_FLUSH"):
        LocalCluster(flush_disk_type="SOMETIMES")


def test_several_brokers_share_the_queues_of_a_topic(tmp_path):
    with LocalCluster(tmp_path, brokers=2) as mq:
        mq.create_topic("orders", queues=2)
        results = send(mq, *[b"%d" % i for i in range(8)])
        assert {r.broker_name for r in results} == {"broker-a", "broker-b"}
        assert len(mq.messages("orders", count=8)) == 8
        assert mq.broker_names == ["broker-a", "broker-b"]
        assert len(set(mq.brokers)) == 2
        assert mq.store_of("broker-b") == tmp_path / "broker-b"
        assert (tmp_path / "broker-b" / "commitlog").is_dir()


@pytest.mark.parametrize("in_process", [True, False])
def test_a_broker_that_is_killed_comes_back_with_its_messages_and_port(in_process):
    with LocalCluster(brokers=2, in_process=in_process) as mq:
        mq.create_topic("orders", queues=1)
        send(mq, *[b"%d" % i for i in range(4)])
        addresses = mq.brokers
        mq.kill_broker("broker-b")
        assert len(mq.pids) == 1
        mq.start_broker("broker-b")
        mq.start_broker("broker-b")
        assert mq.brokers == addresses
        assert bodies(mq, 4) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(ConfigError, match="no broker 'broker-c' in this cluster: it has broker-a, broker-b"):
            mq.kill_broker("broker-c")


@pytest.mark.parametrize("in_process", [True, False])
def test_a_broker_goes_away_and_comes_back_with_its_messages_and_port(in_process):
    with LocalCluster(in_process=in_process) as mq, sync.Producer("pg", namesrv=mq.namesrv, timeout_s=60, retries=1) as producer:
        producer.send(Message("orders", b"before"))
        (address,) = mq.brokers
        mq.stop_broker()
        with pytest.raises(RetriableError):
            producer.send(Message("orders", b"during"), timeout_s=0.5)
        mq.start_broker()
        assert mq.brokers == [address]

        def sent_again():
            try:
                return producer.send(Message("orders", b"after"))
            except RetriableError:
                return None

        wait_until(sent_again)
        assert bodies(mq, 2) == [b"after", b"before"]


@pytest.mark.parametrize("in_process", [True, False])
def test_sends_go_on_without_the_nameserver_and_clients_start_again_when_it_is_back(in_process):
    with LocalCluster(in_process=in_process) as mq:
        with sync.Producer("pg", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"before"))
            mq.stop_namesrv()
            producer.send(Message("orders", b"during"))
        mq.start_namesrv()
        wait_until(lambda: len(mq.messages("orders")) == 2, timeout_s=60)


@pytest.mark.parametrize("in_process", [True, False])
def test_a_given_store_keeps_the_nameservers_key_value_configuration(tmp_path, in_process):
    async def ask(namesrv, code, **ext):
        pool = ConnectionPool(expected="nameserver")
        answer = await (await pool.get(namesrv)).request(code, ext={"namespace": "n", "key": "a", **ext}, timeout_s=60)
        await pool.close()
        return answer

    with LocalCluster(tmp_path, in_process=in_process) as mq:
        assert asyncio.run(ask(mq.namesrv, 100, value="kept")).code == 0
    with LocalCluster(tmp_path, in_process=in_process) as mq:
        assert asyncio.run(ask(mq.namesrv, 101)).ext == {"value": "kept"}


def test_stopping_twice_is_harmless_and_a_stopped_cluster_says_so():
    mq = LocalCluster()
    mq.stop()
    with pytest.raises(ClientClosed, match="not running"):
        mq.namesrv  # noqa: B018
    mq.start()
    assert mq.start() is mq
    mq.stop()
    mq.stop()
    assert repr(mq) == "<LocalCluster not running>"


def test_a_broker_that_the_cluster_does_not_have_has_no_store(tmp_path):
    with LocalCluster(tmp_path) as mq, pytest.raises(ConfigError, match="no broker 'broker-b' in this cluster: it has broker-a"):
        mq.store_of("broker-b")


def test_a_stopped_cluster_starts_again_with_a_new_temporary_store():
    mq = LocalCluster()
    for _ in range(2):
        with mq:
            send(mq, b"one")
            assert len(mq.messages("orders")) == 1


def test_a_topic_that_does_not_exist_holds_nothing():
    with LocalCluster() as mq:
        assert mq.messages("nothing") == []


def test_waiting_for_messages_that_do_not_come_says_how_many_there_were():
    with LocalCluster() as mq:
        send(mq, b"one")
        with pytest.raises(TimeoutError, match=r"topic orders holds 1 messages, not 2, after 0\.05 s"):
            mq.messages("orders", count=2, timeout_s=0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"brokers": 0}, "brokers must be a whole number from 1 to 26"),
        ({"brokers": 2, "port": 10911}, "cannot share one port"),
        ({"brokers": "2"}, "brokers must be a whole number from 1 to 26"),
        ({"replicas": 17}, "replicas must be a whole number from 0 to 16"),
        ({"replicas": 1, "port": 10911}, "cannot share one port"),
        ({"role": "SYNC_MASTER"}, "a SYNC_MASTER waits for slaves: say how many it has"),
        ({"replicas": 1, "role": "SLAVE"}, "role must be ASYNC_MASTER or SYNC_MASTER"),
        ({"replicas": 1, "in_sync_replicas": 2}, "ASYNC_MASTER waits for no slave"),
        ({"port": "10911"}, "port must be a whole number"),
        ({"port": 70000}, "port must be a whole number from 0 to 65535"),
        ({"start_timeout_s": 0}, "start_timeout_s must be a number more than 0"),
        ({"start_timeout_s": math.nan}, "start_timeout_s must be a number more than 0"),
        ({"store": ""}, "store is '': name a directory"),
        ({"default_topic_queues": 0}, "default_topic_queues is 0"),
        ({"cluster_name": "no good"}, "cluster name 'no good' is not valid"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(options, words):
    with pytest.raises(ConfigError, match=words):
        LocalCluster(**options)


def test_a_frozen_program_is_not_started_as_its_own_broker(monkeypatch):
    monkeypatch.setattr("sys.frozen", True, raising=False)
    with pytest.raises(ConfigError, match="in_process must be True in a frozen program"):
        LocalCluster(in_process=False)
    with LocalCluster() as mq:
        assert mq.namesrv


class Opening:
    """Holds back a broker that opens its store until ``go_on``; ``begun`` says that it has come so far."""

    def __init__(self, monkeypatch):
        self.begun, self.go_on = threading.Event(), threading.Event()
        whole = MessageStore.open

        def held(store, *arguments):
            self.begun.set()
            assert self.go_on.wait(30)
            return whole(store, *arguments)

        monkeypatch.setattr(MessageStore, "open", held)


def test_a_start_that_took_too_long_leaves_the_store_to_the_next_one(tmp_path, monkeypatch):
    opening = Opening(monkeypatch)
    for timeout_s in (0.1, 1.0, 10.0):  # a busy machine takes longer to get as far as opening the store
        letting_go = threading.Timer(timeout_s + 0.1, opening.go_on.set)
        letting_go.start()
        with pytest.raises(ClusterFailed, match=rf"did not answer within {timeout_s:g} s"):
            LocalCluster(tmp_path, start_timeout_s=timeout_s).start()
        letting_go.join()
        if opening.begun.is_set():
            break
        opening.go_on.clear()
    assert opening.begun.is_set()
    with LocalCluster(tmp_path) as mq:
        send(mq, b"one")


def test_a_start_that_is_interrupted_leaves_the_store_to_the_next_one(tmp_path, monkeypatch):
    opening = Opening(monkeypatch)

    def interrupt():
        opening.begun.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        threading.Timer(0.2, opening.go_on.set).start()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        LocalCluster(tmp_path).start()
    interrupting.join()
    with LocalCluster(tmp_path) as mq:
        send(mq, b"one")


def test_two_clusters_on_one_store_the_second_is_refused_and_the_first_unharmed(tmp_path):
    with LocalCluster(tmp_path) as mq:
        with pytest.raises(StoreLocked, match=f"store {re.escape(str(tmp_path))} is in use by another broker"):
            LocalCluster(tmp_path).start()
        send(mq, b"one")


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "store").write_text("not a directory")
    with pytest.raises(StoreNotWritable, match="choose another directory"):
        LocalCluster(tmp_path / "store").start()


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("port", "namesrv_port"):
            with pytest.raises(PortInUse, match=f"cannot listen on 127.0.0.1:{port}"):
                LocalCluster(**{option: port}).start()


# From 3.12 on Python warns of any fork while threads run, which is the case tested.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_stopping_in_a_forked_child_harms_nobody():
    with LocalCluster() as mq:
        pid = os.fork()
        if pid == 0:
            try:
                mq.stop_broker()
            except ForkedClient:
                mq.stop()
                os._exit(0 if mq.store.exists() else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        send(mq, b"one")


async def test_a_cluster_whose_start_is_cancelled_is_stopped():
    cluster = LocalCluster()
    entering = asyncio.ensure_future(cluster.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    with pytest.raises(ClientClosed, match="not running"):
        _ = cluster.namesrv
    assert not cluster.store.exists()


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="this Python starts no thread, as a stop needs, once a program is ending"
)
@pytest.mark.parametrize("in_process", [True, False])
def test_a_cluster_left_running_is_stopped_at_the_end_of_the_program(tmp_path, in_process):
    code = f"""
from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
kept = LocalCluster({str(tmp_path / "store")!r}, in_process={in_process}).start()
temporary = LocalCluster(in_process={in_process}).start()
producer = sync.Producer("pg", namesrv=kept.namesrv)
producer.start()
producer.send(Message("orders", b"one"))
print(temporary.store)
"""
    command = [sys.executable, "-W", "error", "-W", "always::ResourceWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr.count("ResourceWarning: LocalCluster in ") == 2
    assert "ResourceWarning: unclosed sync.Producer of group 'pg'" in done.stderr
    assert "Exception" not in done.stderr
    assert not os.path.exists(done.stdout.strip())
    assert not (tmp_path / "store" / "abort").exists()  # the mark of a store that was not closed
    with LocalCluster(tmp_path / "store") as mq:
        assert bodies(mq, 1) == [b"one"]


@pytest.mark.parametrize("in_process", [True, False])
def test_each_broker_has_replicas_that_hold_its_messages(tmp_path, in_process):
    with LocalCluster(tmp_path, brokers=2, replicas=1, role="SYNC_MASTER", in_process=in_process) as mq:
        assert (mq.broker_names, mq.replica_names) == (["broker-a", "broker-b"], ["broker-a-1", "broker-b-1"])
        assert len({*mq.brokers, *map(mq.address, mq.replica_names)}) == 4
        with sync.AdminClient(namesrv=mq.namesrv) as admin:
            wait_until(lambda: [state.in_sync for state in admin.brokers() if not state.is_master] == [True, True])
        mq.create_topic("orders", queues=1)
        assert {result.status for result in send(mq, b"one", b"two")} == {SendStatus.SEND_OK}
        mq.kill_broker("broker-a-1")
        mq.start_broker("broker-a-1")
        assert bodies(mq, 2) == [b"one", b"two"]
    logs = [(tmp_path / name / "commitlog" / f"{0:020}").read_bytes()[:4096] for name in ("broker-a", "broker-a-1")]
    assert logs[0] == logs[1] != bytes(4096)


# --- child processes ------------------------------------------------------------------------------------------------------


def test_child_processes_serve_the_same_and_lose_nothing_when_killed(tmp_path):
    cluster = LocalCluster(tmp_path, brokers=2, in_process=False).start()
    pids = cluster.pids
    cluster.create_topic("orders", queues=1)
    results = send(cluster, *[b"%d" % i for i in range(6)])
    assert {r.broker_name for r in results} == {"broker-a", "broker-b"}
    cluster.kill()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with LocalCluster(tmp_path, brokers=2, in_process=False) as mq:
        assert len(mq.messages("orders", count=6)) == 6
        pids = mq.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_child_processes_take_no_settings_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPROCKETMQ_SET_NO_SUCH_KEY", "refused by servers that users start")
    with LocalCluster(tmp_path, in_process=False) as mq:
        assert send(mq, b"x")[0].status is SendStatus.SEND_OK


def test_a_child_that_cannot_start_says_why(tmp_path):
    (tmp_path / "store").write_text("not a directory")
    with pytest.raises(ClusterFailed, match=r"ended with exit code 1: store .* is not writable") as failure:
        LocalCluster(tmp_path / "store", in_process=False).start()
    assert "Traceback" not in str(failure.value)


def test_children_stop_when_their_parent_is_killed(tmp_path):
    code = f"""
import os, signal
from sprocketmq.embedded import LocalCluster
cluster = LocalCluster({str(tmp_path)!r}, in_process=False).start()
print(cluster.pids[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)

    def gone():
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(gone, what="the end of the child")


def test_a_store_of_one_broker_is_not_hidden_by_those_of_two(tmp_path):
    with LocalCluster(store=tmp_path):
        pass
    with pytest.raises(ConfigError, match="is the store of a single broker"), LocalCluster(store=tmp_path, brokers=2):
        pass
    assert not (tmp_path / "broker-a").exists()


@pytest.mark.parametrize("in_process", [True, False])
def test_the_ports_of_servers_that_are_away_are_given_to_nobody(in_process):
    with LocalCluster(in_process=in_process) as mq:
        mq.stop_broker()
        mq.stop_namesrv()
        for address in (mq.address("broker-a"), mq.namesrv):
            host, _, port = address.partition(":")
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect((host, int(port)))
        mq.start_namesrv()
        mq.start_broker()
        wait_until(lambda: send(mq, b"one"))

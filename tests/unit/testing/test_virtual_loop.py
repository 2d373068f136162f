"""The loop in virtual time and its network: what asyncio code sees of them."""

import asyncio
import contextlib
import random
import time

import pytest

from sprocketmq.testing.rig.determinism import seeded
from sprocketmq.testing.rig.network import Network
from sprocketmq.testing.rig.sim_transport import SOCKET_BUFFERS_BYTES
from sprocketmq.testing.rig.trace import Trace
from sprocketmq.testing.rig.virtual_loop import LoopClock, LoopFlusher, SimulationStuck, VirtualLoop

ONE, OTHER, PORT = "10.0.0.1", "10.0.0.2", 5000


@pytest.fixture
def loop():
    loop = VirtualLoop(random.Random(7))
    yield loop
    loop.close()


@pytest.fixture
def network(loop):
    network = Network(loop, seed="7", trace=Trace(loop.time))
    network.machine("one", ONE)
    network.machine("other", OTHER)
    return network


class Peer:
    """A pair of streams between two machines: ``mine`` on the first, ``theirs`` on the other."""

    def __init__(self, network):
        self.network = network
        self.client, self.server = (network.machines[ip].start("program") for ip in (ONE, OTHER))
        self._accepted = asyncio.Queue()

    async def __aenter__(self):
        listener = await self.server.run(asyncio.start_server(lambda *streams: self._accepted.put_nowait(streams), OTHER, PORT))
        assert listener.is_serving()
        self.reader, self.writer = await self.client.run(asyncio.open_connection(OTHER, PORT))
        self.their_reader, self.their_writer = await self._accepted.get()
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        self.their_writer.close()
        while not self._accepted.empty():
            self._accepted.get_nowait()[1].close()
        await asyncio.sleep(10)


def test_waiting_takes_no_time(loop):
    async def wait():
        await asyncio.sleep(3600)
        return loop.time()

    before, began = loop.time(), time.monotonic()
    assert loop.run_until_complete(wait()) == pytest.approx(before + 3600)
    assert time.monotonic() - began < 60


def test_a_program_that_nobody_will_wake_is_reported(loop):
    with pytest.raises(SimulationStuck, match="nothing is left to do"):
        loop.run_until_complete(asyncio.wait_for(loop.create_future(), None))


def test_a_program_that_does_not_wait_is_reported(loop):
    async def spin():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationStuck, match="some code does not wait"):
        loop.run_until_complete(spin())


def test_a_program_that_takes_too_long_is_reported():
    loop = VirtualLoop(random.Random(7), last_s=1010.0)
    with pytest.raises(SimulationStuck, match="the last moment"):
        loop.run_until_complete(asyncio.sleep(11))
    loop.close()


def test_work_of_threads_runs_on_the_loop_and_its_errors_arrive(loop):
    async def work():
        assert await asyncio.to_thread(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    loop.run_until_complete(work())


def test_a_flusher_runs_its_job_once_for_each_time_it_is_asked_and_then_ends(loop):
    done, ended = [], []
    worker = LoopFlusher(loop)
    worker.start(lambda: done.append(loop.time()), ended.append)
    worker.ask()
    worker.ask()
    worker.end()
    loop.run_until_complete(asyncio.sleep(1))
    assert (len(done), ended, worker.alive) == (2, [None], False)


def test_the_clock_of_a_machine_follows_the_loop_and_can_be_set(loop):
    clock = LoopClock(loop, wall_ms=5_000_000)
    loop.run_until_complete(asyncio.sleep(2))
    clock.jump_wall(-60)
    assert (clock.monotonic(), clock.time_ms()) == (pytest.approx(1002.0), 5_000_000 + 2000 - 60_000)


def test_time_and_random_numbers_are_those_of_the_seed(loop):
    def draw():
        with seeded("7", loop):
            return time.time(), time.monotonic(), random.random()

    first = draw()
    assert draw() == first
    assert first[1] == loop.time()


def test_bytes_arrive_in_order_whatever_pieces_they_come_in(loop, network):
    data = random.Random(1).randbytes(300_000)

    async def talk():
        async with Peer(network) as peer:
            peer.writer.write(data)
            peer.writer.write_eof()
            return await peer.their_reader.read()

    assert loop.run_until_complete(talk()) == data


def test_who_writes_faster_than_is_read_has_to_wait(loop, network):
    async def talk():
        async with Peer(network) as peer:
            peer.their_writer.transport.pause_reading()
            peer.writer.write(bytes(SOCKET_BUFFERS_BYTES + 100_000))
            assert peer.writer.transport.get_write_buffer_size() == 100_000
            draining = asyncio.ensure_future(peer.writer.drain())
            await asyncio.sleep(60)
            assert not draining.done()
            peer.their_writer.transport.resume_reading()
            await peer.their_reader.readexactly(SOCKET_BUFFERS_BYTES + 100_000)
            await draining

    loop.run_until_complete(talk())


def test_what_is_sent_into_a_blocked_network_arrives_after_it_heals(loop, network):
    async def talk():
        async with Peer(network) as peer:
            network.block(ONE, OTHER)
            peer.writer.write(b"late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading := asyncio.ensure_future(peer.their_reader.readexactly(4))), 60)
            connecting = peer.client.run(asyncio.open_connection(OTHER, PORT))
            await asyncio.sleep(60)
            assert not connecting.done()
            network.heal()
            assert await reading == b"late"
            (await connecting)[1].close()

    loop.run_until_complete(talk())


def test_a_reset_ends_both_sides_and_loses_what_was_under_way(loop, network):
    async def talk():
        async with Peer(network) as peer:
            peer.writer.write(b"lost")
            for transport in network.connections_between(ONE, OTHER):
                network.reset(transport)
            for reader in (peer.reader, peer.their_reader):
                with pytest.raises(ConnectionResetError):
                    await reader.read()

    loop.run_until_complete(talk())


def test_the_peers_of_a_killed_process_see_its_connections_end(loop, network):
    async def talk():
        async with Peer(network) as peer:
            peer.server.kill()
            with contextlib.suppress(ConnectionResetError):
                assert await peer.reader.read() == b""
            with pytest.raises(ConnectionRefusedError):
                await peer.client.run(asyncio.open_connection(OTHER, PORT))

    loop.run_until_complete(talk())


def test_nobody_hears_of_a_machine_without_power_until_it_is_back_and_written_to(loop, network):
    async def talk():
        async with Peer(network) as peer:
            network.machines[OTHER].switch_off()
            reading = asyncio.ensure_future(peer.reader.read())
            peer.writer.write(b"anybody?")
            await asyncio.sleep(60)
            assert not reading.done()
            network.machines[OTHER].switch_on()
            with pytest.raises(ConnectionResetError):
                await reading

    loop.run_until_complete(talk())


def test_a_frozen_process_does_nothing_until_it_goes_on(loop, network):
    async def talk():
        async with Peer(network) as peer:
            reading = peer.server.run(peer.their_reader.readexactly(5))
            peer.server.freeze()
            peer.writer.write(b"hello")
            await asyncio.sleep(60)
            assert not reading.done()
            peer.server.resume()
            assert await reading == b"hello"

    loop.run_until_complete(talk())


def test_what_listens_nowhere_or_is_no_machine_cannot_be_reached(loop, network):
    async def talk():
        async with Peer(network) as peer:
            with pytest.raises(ConnectionRefusedError):
                await peer.client.run(asyncio.open_connection(OTHER, 1))
            with pytest.raises(OSError, match="route"):
                await peer.client.run(asyncio.open_connection("10.9.9.9", 1))
            with pytest.raises(OSError, match="in use"):
                await peer.server.run(asyncio.start_server(print, OTHER, PORT))

    loop.run_until_complete(talk())

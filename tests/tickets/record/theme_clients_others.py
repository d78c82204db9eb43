"""Channels, connections and paths of clients of several languages; and those that only look like what is wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from tests.tickets.record.clients import ALL, TWO, Play, Refused, tickets
from tests.tickets.record.stage import far_broker
from tests.tickets.record.theme_ways import Balancer


def _channels(play: Play, count: int, closes: bool, pause: float = 0.02) -> None:
    with play.sniff():
        client = play.publisher("api")
        for number in range(2, count + 2):
            client.channel_open(channel=number)
            client.publish(key=play.name, body=f"call {number}", channel=number)
            time.sleep(pause)
            if closes:
                client.channel_close(channel=number)
        time.sleep(0.3)
        client.close()


@tickets(*TWO)
def channel_each_time(play: Play) -> None:
    """It opens a channel for each message."""
    _channels(play, 20, closes=True)


@tickets(*TWO)
def channels_pile_up(play: Play) -> None:
    """It opens one for each message, and closes none."""
    _channels(play, 40, closes=False, pause=0.06)


def _connections(play: Play, count: int, each: int) -> None:
    with play.sniff():
        for number in range(count):
            client = play.client("php")
            client.channel_open(confirms=True)
            client.declare(queue=play.name)
            client.publish(key=play.name, body=f"page {number}", repeat=each)
            client.wait()
            client.close()
            client.kill()


@tickets(*TWO)
def connection_each_time(play: Play) -> None:
    """Ten connections, for a message each."""
    _connections(play, 10, 1)


@tickets(*ALL)
def three_connections(play: Play) -> None:
    """Three of them."""
    _connections(play, 3, 4)


def _logging_in(play: Play, times: int, **login: str) -> None:
    with play.sniff():
        for _ in range(times):
            with contextlib.suppress(Refused):
                play.client("biller", **login)
            time.sleep(0.2)
        client = play.publisher("biller")
        client.close()


@tickets(*TWO)
def never_let_in(play: Play) -> None:
    """Its password is wrong, and it tries again and again."""
    with play.sniff():
        for _ in range(4):
            with contextlib.suppress(Refused):
                play.client("biller", password="wrong")
            time.sleep(0.2)


@tickets(*TWO)
def let_in_then(play: Play) -> None:
    """Its password is wrong once."""
    _logging_in(play, 1, password="wrong")


@tickets(*TWO)
def unknown_vhost(play: Play) -> None:
    """It names a virtual host that is not there."""
    _logging_in(play, 1, vhost="staging")


@tickets(*ALL)
def let_in(play: Play) -> None:
    """Nothing is wrong; it logs in, and goes."""
    _logging_in(play, 0)


def _pausing(play: Play, stops: bool) -> None:
    with play.sniff():
        client = play.publisher("frozen", heartbeat=2)
        client.publish(key=play.name)
        client.wait()
        if stops:
            os.kill(client.process, signal.SIGSTOP)
            time.sleep(7)
            client.kill()
        else:
            for _ in range(7):
                client.wait(seconds=1) if play.kind == "amqp" else time.sleep(1)
            client.close()
        time.sleep(0.3)


@tickets(*TWO)
def stands_still(play: Play) -> None:
    """The client's process is stopped, and its heartbeat is 2 s."""
    _pausing(play, stops=True)


@tickets(*TWO)
def idles(play: Play) -> None:
    """It has nothing to do for as long."""
    _pausing(play, stops=False)


def _beats(play: Play, heartbeat: int) -> None:
    with play.sniff():
        client = play.publisher("cron", heartbeat=heartbeat)
        client.publish(key=play.name)
        client.wait()
        client.close()


@tickets("amqp", "bunny")
def no_heartbeats(play: Play) -> None:
    """Heartbeats are switched off, which amqplib cannot where the broker wants them."""
    _beats(play, 0)


@tickets(*ALL)
def heartbeats_on(play: Play) -> None:
    """They are on."""
    _beats(play, 30)


@tickets(*TWO)
def shut_out(play: Play) -> None:
    """An operator closes all connections."""
    with play.sniff():
        client = play.publisher("reporter")
        client.publish(key=play.name)
        client.wait()
        play.broker.control("close_all_connections", "maintenance at night")
        time.sleep(0.5)


@tickets("amqplib")
def closes_itself(play: Play) -> None:
    """It closes its connection, and an operator closes all then."""
    with play.sniff():
        client = play.publisher("reporter")
        client.close()
        play.broker.control("close_all_connections", "maintenance at night")


@tickets(*ALL)
def unknown_exchange_type(play: Play) -> None:
    """An exchange of a type that the broker has no plugin for."""
    with play.sniff():
        client = play.publisher("scheduler")
        with contextlib.suppress(Refused):
            client.exchange(exchange=play.name, kind="x-delayed-message")
        time.sleep(0.3)


def _balanced(play: Play, quiet: tuple[float, ...], patience: float) -> None:
    """Clients behind a load balancer, which are quiet for some time each."""
    path = play.stage.path
    with contextlib.closing(Balancer(patience)), play.sniff():
        for seconds in quiet:
            client = play.publisher(f"api-{seconds}", host=Balancer.ADDRESS)
            client.publish(key=play.name)
            client.wait()
            time.sleep(seconds)
            with contextlib.suppress(Refused):
                client.close()
            client.kill()
        time.sleep(0.3)
    whole = path.with_suffix(".whole")
    path.rename(whole)
    near = ["tcpdump", "-r", str(whole), "-w", str(path), f"host {Balancer.ADDRESS}"]
    subprocess.run(near, check=True, stderr=subprocess.DEVNULL)
    whole.unlink()


@tickets(*TWO)
def cut_when_idle(play: Play) -> None:
    """The balancer ends what is idle for six seconds."""
    _balanced(play, (6.6, 7.0), 6)


@tickets(*ALL)
def idle_but_closed(play: Play) -> None:
    """They are idle for as long, and close their connections themselves."""
    _balanced(play, (5.5, 5.5), 9)


@tickets(*TWO)
def cut_at_work(play: Play) -> None:
    """The balancer goes away while a client works."""
    _balanced(play, (1.5,), 1)


def _asking_far(play: Play, count: int) -> None:
    with far_broker() as far, play.sniff(interface="shaky"):
        client = play.client("admin", host=far)
        client.channel_open()
        for number in range(count):
            client.declare(queue=f"{play.name}_{number}")
        client.close()


@tickets(*TWO)
def far_declarations(play: Play) -> None:
    """Fifty-five queues are declared one after the other, 40 ms away."""
    _asking_far(play, 55)


@tickets(*TWO)
def few_far_declarations(play: Play) -> None:
    """Ten are."""
    _asking_far(play, 10)


@tickets(*ALL)
def broken_off(play: Play) -> None:
    """Publishes are under way when its connection breaks; it publishes them again on the next one."""
    with play.sniff():
        first = play.client("relay")
        first.channel_open(confirms=True)
        first.declare(queue=play.name, arguments={"x-queue-type": "quorum"})
        server = f"whereis('%2F_{play.name}')"
        play.broker.control("eval", f"sys:suspend({server}).")
        for number in range(8):
            first.publish(key=play.name, body="tick", properties={"message_id": f"t{number}"})
        time.sleep(0.3)
        first.kill()
        play.broker.control("eval", f"sys:resume({server}).")
        time.sleep(0.3)
        second = play.client("relay")
        second.channel_open(confirms=True)
        for number in range(8):
            second.publish(key=play.name, body="tick", properties={"message_id": f"t{number}"})
        second.wait()
        second.close()


@tickets(*TWO)
def goes_on(play: Play) -> None:
    """The first connection ends with all confirmed; the next one publishes other messages of equal contents."""
    with play.sniff():
        for turn in range(2):
            client = play.publisher("relay")
            for number in range(8):
                client.publish(key=play.name, body="tick", properties={"message_id": f"{turn}-{number}"})
            client.wait()
            client.close()

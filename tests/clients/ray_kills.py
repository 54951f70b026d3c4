"""Packs a folder here, then by a cluster of two nodes, whose drivers, workers and second node are
killed at random moments: FOLDER KILLS. What is left is finished by the next driver."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from fastload.errors import SourceError
from fastload.sources import open_source
from fastload.tools.pack import PackOptions, pack
from tests.images import write_photo_folder

OPTIONS = PackOptions(size=10_000)
FORK = multiprocessing.get_context("fork")  # this process has no threads, and drivers start at once


def main(folder: Path, kills: int) -> None:
    source = write_photo_folder(folder / "photographs", classes=3, per_class=20)
    ours, theirs = FORK.Pipe()
    cluster = FORK.Process(target=serve, args=(theirs,))
    cluster.start()
    address = answer(cluster, ours)
    whole = pack(str(source), folder / "local", OPTIONS, progress=False)
    moments, finished = random.Random(5), 0
    killed = {"driver": 0, "node": 0, "worker": 0}
    while sum(killed.values()) < kills:
        target = folder / f"cluster{finished}"
        driver = started(source, target, address)
        wait_for(driver, target, moments.randrange(len(whole.rows)))
        time.sleep(moments.uniform(0, 0.05))
        who = moments.choice(sorted(killed))
        if who == "driver":
            assert driver.pid is not None
            os.kill(driver.pid, signal.SIGKILL)
            killed[who] += 1
        elif who == "node":
            ask(cluster, ours, "kill")
            killed[who] += 1
        else:
            killed[who] += kill_a_worker(moments)
        driver.join()
        assert driver.exitcode in (0, -signal.SIGKILL if who == "driver" else 0)
        if who == "node":
            ask(cluster, ours, "add")
        if driver.exitcode == 0:
            finished += 1
        elif list(target.glob("shard-*")) and not (target / "manifest.jsonl").exists():
            check_refused(target)
    driver = started(source, folder / f"cluster{finished}", address)
    driver.join()
    assert driver.exitcode == 0
    ours.send("end")
    cluster.join()
    (folder / "killed").write_text(" ".join(f"{who} {count}" for who, count in killed.items()))


def ask(cluster: multiprocessing.process.BaseProcess, connection: Connection, what: str) -> None:
    connection.send(what)
    answer(cluster, connection)


def answer(cluster: multiprocessing.process.BaseProcess, connection: Connection) -> Any:
    while not connection.poll(1):
        assert cluster.is_alive(), "the cluster has ended"
    return connection.recv()


def serve(connection: Connection) -> None:
    """The cluster, whose second node is killed and replaced when asked, until it is to end."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = added(cluster)
    connection.send(cluster.address)
    while (asked := connection.recv()) != "end":
        if asked == "kill":
            cluster.remove_node(second, allow_graceful=False)
        else:
            second = added(cluster)
        connection.send("done")
    cluster.shutdown()


def added(cluster: Cluster) -> Any:
    """A node more. Where the machine has much to do, 30 s, which Ray waits, may be too few."""
    for _ in range(5):
        try:
            return cluster.add_node(num_cpus=1)
        except Exception as error:
            print(f"a node has not started: {error}")
    return cluster.add_node(num_cpus=1)


def started(source: Path, target: Path, address: str) -> multiprocessing.process.BaseProcess:
    driver = FORK.Process(target=drive, args=(str(source), target, address))
    driver.start()
    return driver


def drive(source: str, target: Path, address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    pack(source, target, OPTIONS, progress=False, ray=address)
    ray.shutdown()


def wait_for(driver: multiprocessing.process.BaseProcess, target: Path, shards: int) -> None:
    """Until so many are there, or the driver has ended."""
    while driver.is_alive() and len(list(target.glob("shard-*"))) < shards:
        time.sleep(0.002)


def kill_a_worker(moments: random.Random) -> int:
    """How many: 0 where none is there."""
    ours = psutil.Process().children(recursive=True)
    there = [one for one in ours if one.name() in ("ray::_call", "ray::IDLE")]
    if not there:
        return 0
    try:
        moments.choice(there).kill()
    except psutil.NoSuchProcess:
        return 0
    return 1


def check_refused(target: Path) -> None:
    said = ""
    try:
        open_source(target)
    except SourceError as error:
        said = str(error)
    assert "has not finished" in said, said or "it is opened, and is not whole"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

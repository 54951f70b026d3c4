"""Packs a folder here, then by a cluster of two nodes; the second node is killed when the first
shards are there."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from fastload.tools.pack import PackOptions, pack
from tests.images import write_photo_folder


def main(folder: Path) -> None:
    source = write_photo_folder(folder / "photographs", classes=3, per_class=20)
    options = PackOptions(size=10_000)
    pack(str(source), folder / "local", options, progress=False)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    before = _alive()
    seen = threading.Event()

    def kill() -> None:
        while not list((folder / "cluster").glob("shard-*.tar")):
            time.sleep(0.01)
        cluster.remove_node(second, allow_graceful=False)
        seen.set()

    threading.Thread(target=kill, daemon=True).start()
    pack(str(source), folder / "cluster", options, progress=False, ray=cluster.address)
    assert seen.wait(60)
    for _ in range(600):  # until the cluster has noticed
        if _alive() == 1:
            break
        time.sleep(0.1)
    (folder / "nodes").write_text(f"{before} before, {_alive()} after")
    ray.shutdown()
    cluster.shutdown()


def _alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Run by test_broadcast.py, once for each rank: the samples of the ranks of a mesh, read by each of
them and by one for its group."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import Dataset

import fastload
from fastload.errors import StateMismatchError

MESHES = {
    4: {
        "DDP": {"dp": 4},
        "HSDP": {"dp_replicate": 2, "dp_shard": 2},
        "TP": {"dp": 2, "tp": 2},
        "CP": {"dp": 2, "cp": 2},
        "PP": {"pp": 2, "dp": 2},
        "TP alone": {"dp": 1, "tp": 4},
    },
    8: {
        "HSDP, TP": {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
        "PP, DP, TP": {"pp": 2, "dp": 2, "tp": 2},
        "HSDP, CP": {"dp_replicate": 2, "dp_shard": 2, "cp": 2},
    },
}
SAMPLES, BATCH = 48, 3
DATA = {
    "image": np.arange(SAMPLES * 3 * 4 * 4, dtype=np.int64).astype(np.uint8).reshape(-1, 3, 4, 4),
    "label": np.arange(SAMPLES),
    "name": [f"sample {n}" for n in range(SAMPLES)],
}


class Odd(Dataset[Any]):
    """Sample 5 cannot be read."""

    def __len__(self) -> int:
        return 2 * BATCH * 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            raise ValueError("sample 5 is not there")
        return {"number": index, "text": str(index), "half": torch.full((2,), index).half()}


def listed(batch: dict[str, Any]) -> list[Any]:
    return [
        batch["label"].tolist(),
        batch["image"].flatten().tolist()[:5],
        list(batch["image"].stride()),
        list(batch["name"]),
    ]


def run(shard: Any, steps: int | None = None, state: Any = None) -> dict[str, Any]:
    """Two epochs, or some steps and the state after them."""
    with fastload.create_loader(DATA, BATCH, shuffle=True, shard=shard) as loader:
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        if steps is not None:
            taken = [listed(next(batches)) for _ in range(steps)]
            return {"batches": taken, "state": loader.state_dict()}
        taken = [listed(batch) for batch in batches]
        return {
            "batches": [taken, [listed(batch) for batch in loader]],
            "samples": loader.stats().samples,
            "started": loader._feed._maker is not None,
            "part": [loader.shard.rank, loader.shard.world_size],
            "explained": next(line for line in loader.explain().splitlines() if "part" in line),
        }


def errors(shard: Any) -> list[Any]:
    """The numbers of each batch, or the error in its place."""
    seen: list[Any] = []
    with fastload.create_loader(Odd(), BATCH, shard=shard, num_workers=0) as loader:
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return seen
            except ValueError as error:
                seen.append(str(error).splitlines()[-1])
            else:
                assert batch["half"].dtype == torch.float16
                seen.append([batch["number"].tolist(), batch["text"]])


def differing(shard: Any, seed: int = 0) -> str:
    """What a rank says whose loader has another seed, or another part of the data, than that which
    makes its batches."""
    with fastload.create_loader(DATA, BATCH, shuffle=True, seed=seed, shard=shard) as loader:
        try:
            next(iter(loader))
        except StateMismatchError as error:
            return str(error)
    return ""


def main(directory: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {}
    for number, (name, plain) in enumerate(MESHES[world].items()):
        sizes = {f"{dimension}_{number}": size for dimension, size in plain.items()}
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        data = tuple(one for one in sizes if one.startswith("dp"))
        same = next((one for one in sizes if not one.startswith("dp")), None)
        place = mesh[data]
        alone = run(place)
        results[name] = {"coordinate": mesh.get_coordinate(), "alone": alone}
        if len(sizes) > 1:  # a mesh of one dimension has no group of its own
            results[name]["by names"] = run(data)
        if len(data) == 1:
            results[name]["by group"] = run(place.get_group())
        if same is None:
            continue
        shared = fastload.MeshShard(place, broadcast=mesh[same])
        half = run(shared, steps=2)
        results[name] |= {
            "shared": run(shared),
            "first half": half["batches"],
            "second half": run(shared, state=half["state"])["batches"],
            "errors": [errors(place), errors(shared)],
            "differing": differing(shared, mesh.get_local_rank(same)),
        }
    # Ranks that divide the data by both dimensions, so that neither shows it.
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp_a", "dp_b"))
    pairs = [dist.new_group([one, world - 1 - one]) for one in range(world // 2)]
    pair = pairs[min(rank, world - 1 - rank)]
    wrong = differing(fastload.MeshShard(("dp_a", "dp_b"), broadcast=pair))
    results["wrong"] = {"first": dist.get_rank(pair) == 0, "said": wrong}
    (Path(directory) / f"mesh.{rank}").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

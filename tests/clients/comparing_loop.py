"""Run by test_comparing.py, once for each rank of a (dp, tp) mesh of 2 by 2: loaders that differ in
one thing, and what each rank says of it."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import fastload
from fastload.errors import ConfigurationError, SourceError, StateMismatchError

SAMPLES, BATCH = 48, 3
DATA = {"number": np.arange(SAMPLES)}


class Drawn:
    """A sampler with a seed of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return SAMPLES // 2

    def __iter__(self) -> Any:
        return iter(np.random.default_rng(self.seed).permutation(SAMPLES)[: SAMPLES // 2].tolist())


class Broken:
    """A sampler that ends with an error."""

    def __len__(self) -> int:
        return SAMPLES // 2

    def __iter__(self) -> Any:
        raise RuntimeError("no order today")


def said(loader: fastload.Loader, state: Any = None) -> Any:
    """The first batch, or the error in its place."""
    with loader:
        try:
            if state is not None:
                loader.load_state_dict(state)
            return next(iter(loader))["number"].tolist()
        except StopIteration:
            return "end"
        except (StateMismatchError, SourceError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"


def state_at(step: int, shard: Any) -> Any:
    loader = fastload.create_loader(DATA, BATCH, shuffle=True, shard=shard)
    loader.skip(step)
    return loader.state_dict()


def main(directory: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp = mesh.get_local_rank("tp")
    place = mesh["dp"]
    same = fastload.MeshShard(place, compare=mesh["tp"])
    everybody = fastload.MeshShard(place, compare=True)
    data = fastload.MeshShard(place, compare="dp")

    def made(shard: Any, seed: int = 0, source: Any = DATA, **options: Any) -> fastload.Loader:
        options = {"shuffle": True, "shard": shard, "seed": seed} | options
        return fastload.create_loader(source, BATCH, **options)

    results: dict[str, Any] = {"place": mesh.get_coordinate()}
    results["alike"] = [said(made(shard)) for shard in (place, same, everybody, data)]
    results["seed"] = [said(made(shard, seed=tp)) for shard in (same, everybody, data)]
    results["seed of rank 3"] = [
        said(made(s, seed=int(rank == 3))) for s in (same, everybody, data)
    ]
    other = {"number": np.arange(SAMPLES) + (rank == 2)}
    results["data of rank 2"] = [said(made(s, source=other)) for s in (same, everybody, data)]
    steps = SAMPLES // BATCH // 2
    # At the end of the epoch there is no batch on the ranks with tp 1.
    results["state"] = [
        said(made(same), state_at(at, place)) for at in (2, 2 + tp, steps - (tp == 0), steps)
    ]
    results["order"] = said(made(same, shuffle=bool(tp)))
    part = fastload.MeshShard(fastload.Shard(tp, 2), compare=mesh["tp"])
    results["part"] = said(made(part))
    uneven = fastload.MeshShard(fastload.Shard(int(rank == 3), 2), compare=True)
    results["parts of everybody"] = said(made(uneven))

    def sampled(seed: int) -> fastload.Loader:
        return made(same, shuffle=False, sampler=Drawn(seed))

    results["sampler"] = [said(sampled(0)), said(sampled(tp))]
    broken = made(same, shuffle=False, sampler=Broken() if tp else range(SAMPLES // 2))
    results["broken"] = said(broken)
    # An error that `iter()` raises, before any `next`.
    rows = Path(directory) / f"rows.{rank}" / "rows.npz"
    rows.parent.mkdir()
    np.savez(rows, **{str(number): np.full(2, number) for number in range(SAMPLES)})
    rewritten = made(same, source=fastload.join(DATA, {"row": rows}, by="index"))
    if tp:
        os.utime(rows, (0, 0))
    results["rewritten"] = said(rewritten)
    # Two epochs, and one that was left: one comparison each, and the loader goes on.
    with made(everybody) as loader:
        next(iter(loader))
        epochs = [[batch["number"].tolist() for batch in loader] for _ in range(2)]
        results["part of the loader"] = "compared with that of ranks 0, 1, 2, 3" in loader.explain()
    results["epochs"] = epochs
    with made(place) as plain:
        plain.set_epoch(1)
        results["plain"] = [[batch["number"].tolist() for batch in plain] for _ in range(2)]
    try:
        made(fastload.MeshShard(place, compare=3))
    except ConfigurationError as error:
        results["refused"] = str(error)
    (Path(directory) / f"comparing.{rank}").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

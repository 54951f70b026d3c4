"""The part of the data that a process reads, by torch's meshes and process groups: under tensor,
context or pipeline parallelism several ranks read the same part."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from fastload.errors import ConfigurationError, counted
from fastload.sampler.order import Compared, Shard, ShardHere

SAME_SAMPLES = frozenset(
    ("context", "cp", "pipeline", "pp", "sequence", "sp", "tensor", "tp", "ulysses")
)
"""Words in the names of groups whose ranks get the same samples: `tp` of a DeviceMesh,
`TENSOR_MODEL_PARALLEL_GROUP` of Megatron."""


@dataclass(frozen=True)
class MeshShard:
    """This process's place among the groups of ranks that divide the data, for `shard=`.

    `shard=mesh["dp"]` is short for `shard=MeshShard(mesh["dp"])`.

    Raises:
        ConfigurationError: (when the Loader is made:) it is no mesh, group or name of one; this
            process is not in it; a mesh has a dimension whose ranks must get the same samples, or
            several without names; ranks of `broadcast` divide the data; or `torch.distributed` does
            not run, and ranks are to be compared.
    """

    ranks: Any
    """Those that divide the data, each of which reads another part: a DeviceMesh of one dimension,
    or of several that all divide it (`mesh["dp_replicate", "dp_shard"]`, the first one slowest); a
    process group; the name of a mesh's dimension, or several; or a Shard."""
    broadcast: Any = None
    """A mesh of one dimension, a process group or a name: ranks that get the same samples
    (`mesh["tp"]`). The first of them makes the batches, the others receive them, each at `next`, on
    the loader's device; all of them must ask for each batch. None: each makes its own."""
    compare: Any = None
    """Ranks that say to each other, at the first `next` after each `iter()`, what they are about to
    give: a mesh of one dimension, a process group, a name, or True: all of `torch.distributed`. If
    one has another seed, order, data set, recipe or place in the epochs than others, all of them
    raise StateMismatchError, which names the ranks. It is one collective, in the trainer's thread,
    which each of these ranks must reach. None: nothing is compared."""


def shard_of(given: Any) -> ShardHere:
    """What a mesh, a group, names or a MeshShard say. Raises ConfigurationError: nothing, see
    `MeshShard`."""
    asked = given if isinstance(given, MeshShard) else MeshShard(given)
    shard, ranks = _part_of(asked.ranks)
    note = f"shard: part {shard.rank} of {shard.world_size}"
    if len(ranks) == shard.world_size:
        note += f", divided among {_shown(ranks)} of {counted(dist.get_world_size(), 'process')}"
    compared = _compared(asked.compare, ranks)
    if compared is not None:
        note += "; its state is compared with that of "
        note += _shown(dist.get_process_group_ranks(compared.group))
    if asked.broadcast is None:
        return ShardHere(shard, note, compare=compared)
    group, here = _group_of(asked.broadcast, "broadcast"), dist.get_rank()
    sharing = dist.get_process_group_ranks(group)
    if others := {*sharing} & {*ranks} - {here}:
        raise ConfigurationError(
            f"shard: broadcast has {_shown(sharing)}, of which {_shown(sorted({here, *others}))} "
            "divide the data, so that their batches differ. Give the ranks that get the same "
            'samples: mesh["tp"], for example.'
        )
    if len(sharing) == 1:
        return ShardHere(shard, note, compare=compared)
    note += f"; rank {sharing[0]} makes the batches of {_shown(sharing)}"
    return ShardHere(shard, note, group, compared)


def _compared(given: Any, ranks: Sequence[int]) -> Compared | None:
    """What `compare=` says, where these ranks divide the data; None: nothing, or one rank."""
    if given is None or given is False:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigurationError(
            "compare: torch.distributed does not run, so that there are no ranks to compare. Make "
            "the loader after init_process_group, or leave compare out."
        )
    group = dist.group.WORLD if given is True else _group_of(given, "compare")
    members = dist.get_process_group_ranks(group)
    divided = given is True or len({*members} & {*ranks}) > 1
    return Compared(group, divided) if len(members) > 1 else None


def _shown(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def _part_of(given: Any) -> tuple[Shard, Sequence[int]]:
    """(this process's part, ranks that are known to have another one each)."""
    if isinstance(given, Shard):
        return given, ()
    if _is_mesh(given):
        return _part_in_mesh(given)
    names = [given] if isinstance(given, str) else given
    if not (isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names)):
        group = _group_of(given, "shard")
        return Shard(group.rank(), group.size()), dist.get_process_group_ranks(group)
    groups = [_named(name) for name in names]
    ranks = {rank for group in groups for rank in dist.get_process_group_ranks(group)}
    return _part_at([one.rank() for one in groups], [one.size() for one in groups]), sorted(ranks)


def _part_at(places: Sequence[int], sizes: Sequence[int]) -> Shard:
    """Of a place in each of several dimensions, the first one slowest."""
    rank = 0
    for place, size in zip(places, sizes, strict=True):
        rank = rank * size + place
    return Shard(rank, math.prod(sizes))


def _part_in_mesh(mesh: Any) -> tuple[Shard, list[int]]:
    names = mesh.mesh_dim_names
    same = [name for name in names or () if words_of(name) & SAME_SAMPLES]
    if same or (mesh.ndim > 1 and not names):
        why = f"the ranks of {same[0]!r} must get the same samples" if same else "it has no names"
        raise ConfigurationError(
            f"shard: a mesh of {counted(mesh.ndim, 'dimension')}, {names}, was given, and {why}. "
            'Give those that divide the data: mesh["dp"], or mesh["dp_replicate", "dp_shard"].'
        )
    places = mesh.get_coordinate()
    if places is None:
        raise ConfigurationError(
            f"shard: rank {dist.get_rank()} is not in {mesh}. Make the loader on its ranks only."
        )
    return _part_at(places, mesh.shape), mesh.mesh.flatten().tolist()


def _group_of(given: Any, argument: str) -> Any:
    """The process group that is meant. Raises ConfigurationError: none, or this process is not in
    it."""
    if isinstance(given, str):
        return _named(given)
    if _is_mesh(given) and given.ndim == 1:
        return given.get_group()
    if dist.is_available() and isinstance(given, dist.ProcessGroup) and dist.get_rank(given) >= 0:
        return given
    others = {"shard": "a fastload.Shard, 'auto', None, ", "compare": "True, None, "}.get(
        argument, ""
    )
    raise ConfigurationError(
        f"{argument}: must be {others}a DeviceMesh, of one dimension or with names for them, a "
        "process group that this process is in, or the name of a mesh's dimension, got "
        f"{given!r}."
    )


def _is_mesh(given: Any) -> bool:
    if not (dist.is_available() and dist.is_initialized()):
        return False  # Nobody has made a mesh.
    return isinstance(given, dist.device_mesh.DeviceMesh)


def _named(name: str) -> Any:
    """The process group of a mesh's dimension of this name, among those that this process is in."""
    here = groups_here()
    groups = {
        tuple(dist.get_process_group_ranks(group)): group
        for group in here
        if group.group_desc == f"mesh_{name}"
    }
    if len(groups) == 1:
        return next(iter(groups.values()))
    why = "the ranks differ from mesh to mesh" if groups else "no mesh has such a dimension"
    names = ", ".join(sorted({group.group_desc for group in here})) or "none"
    raise ConfigurationError(
        f"shard: got {name!r}, and {why}. The process groups here are: {names}. Make the mesh "
        f"before the loader, and give mesh[{name!r}] itself."
    )


def groups_here() -> list[Any]:
    """The process groups that this process is in."""
    if not (dist.is_available() and dist.is_initialized()):
        return []
    return list(dist.distributed_c10d._world.pg_names)


def words_of(name: str) -> set[str]:
    """Of the name of a dimension or group, in lower case."""
    return set(re.split(r"[^a-z]+", name.lower()))

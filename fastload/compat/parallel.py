"""Ranks that work on the same samples: those of a tensor, context or pipeline parallel group."""

from __future__ import annotations

import re
import sys

import torch.distributed as dist

from fastload.errors import counted

_WORDS = {"context", "cp", "pipeline", "pp", "tensor", "tp"}
"""By which the groups of such ranks are described: `mesh_tp` of a DeviceMesh with a dimension "tp",
`TENSOR_MODEL_PARALLEL_GROUP` of Megatron."""


def shares_a_model() -> str:
    """What shows that this process has no samples of its own, for a message; empty: nothing does.

    Looked at are the process groups that it belongs to, and what Accelerate was given. A mesh of
    one dimension that has all ranks shows nowhere.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    for group in dist.distributed_c10d._world.pg_names:
        said = str(group.group_desc)
        if group.size() > 1 and _WORDS & set(re.split(r"[^a-z]+", said.lower())):
            return f"the process group {said!r} of {counted(group.size(), 'rank')}"
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    given = None if state is None else state._shared_state.get("parallelism_config")
    if given is not None and given.non_data_parallel_size > 1:
        ranks = counted(given.non_data_parallel_size, "rank")
        return f"Accelerate's {type(given).__name__} with {ranks} a model"
    return ""

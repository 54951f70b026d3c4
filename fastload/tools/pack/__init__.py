"""`fastload pack`: any data set written again as tar shards, Parquet files or caches.

plan.py      which samples go to which shard: a function of the samples and the options
contents.py  the columns of a data set as the fields of a shard
shard.py     `pack_shard(job)`: one shard, whole or not at all, and what became of it
target.py    the folder that is filled: who fills it, what is done, what is left to do
run.py       `pack`: all shards, by threads of this process or by a Ray cluster
report.py    the page about it
caches.py    `pack_caches`: decoded pixels in place of shards
"""

from fastload.tools.pack.caches import pack_caches
from fastload.tools.pack.plan import PackOptions
from fastload.tools.pack.run import pack
from fastload.tools.pack.target import Packed

__all__ = ["PackOptions", "Packed", "pack", "pack_caches"]

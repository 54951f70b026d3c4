"""The script's own sampler, on which it may set the epoch as under a DataLoader:
`sampler.set_epoch(3)`."""

from __future__ import annotations

from typing import Any


class _SeenEpoch(int):
    """The number of an epoch that we have seen on a sampler; a plain int in its place was set
    since, be it the same."""

    def __reduce__(self) -> Any:
        return int, (int(self),)


class FollowedSampler:
    """Notices the epochs that the script sets. From the first one on the sampler's epoch counts at
    each `iter()`: a script that sets 0 twice gets the order of epoch 0 twice. One that never sets
    any gets one epoch after the other."""

    def __init__(self, sampler: Any) -> None:
        """`sampler`: None, or any; one without an int `epoch` is never followed."""
        self._sampler = sampler
        self._noted: Any = None
        self._following = bool(getattr(sampler, "epoch", 0))
        if not self._following:
            self.note()

    @property
    def chosen(self) -> int | None:
        """The epoch that the script wants next; None where it has never set one."""
        epoch = getattr(self._sampler, "epoch", None)
        noted = epoch is self._noted or (
            type(self._noted) is not _SeenEpoch and epoch == self._noted
        )
        self._following = self._following or not noted
        return int(epoch) if self._following and isinstance(epoch, int) else None

    def set_epoch(self, epoch: int) -> None:
        """Set it on the sampler, if that takes epochs."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def note(self) -> None:
        """The epoch that the sampler has now was not set by the script, or has been seen."""
        epoch: Any = getattr(self._sampler, "epoch", None)
        # Only a plain attribute, as DistributedSampler has it: a property might do anything when it
        # is assigned.
        if type(epoch) is int and getattr(self._sampler, "__dict__", {}).get("epoch") is epoch:
            self._sampler.epoch = epoch = _SeenEpoch(str(epoch))
        self._noted = epoch

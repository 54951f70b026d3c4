"""The `by-hand` backend: one image after the other, in the calling thread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fastload.backends.base import (
    BackendOptions,
    Context,
    Failure,
    Fit,
    HostBatch,
    MadeHere,
    Work,
    Workload,
)
from fastload.decode import get_decoder
from fastload.decode.image import decode_image
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.render.host import render_into
from fastload.sources.kinds import pixel_kind


class ByHandBackend:
    name = "by-hand"
    depth = 2
    background = False
    Options = BackendOptions

    def __init__(self, context: Context, options: BackendOptions) -> None:
        self.source, self.plan = context.source, context.recipe.geometry
        self.settings = options.decode_settings

    @classmethod
    def fit(cls, workload: Workload) -> Fit:
        return Fit(0.2 if workload.source.encoded else 0.0, "compressed images, one by one")

    def start(self, draws: Draws) -> Work:
        return MadeHere(partial(self.batch, draws))

    def batch(self, draws: Draws) -> HostBatch:
        batch = HostBatch({n: c.at(draws.indices) for n, c in self.source.values.items()})
        failed: dict[int, Failure] = {}
        for name, column in self.source.encoded.items():
            kind = pixel_kind(column.role)
            images = []
            for row, index in enumerate(draws.indices.tolist()):
                try:
                    pixels = decode_image(
                        column.read(index),
                        name=column.describe(index),
                        decoder=get_decoder(),
                        settings=self.settings,
                        as_stored=kind.as_stored,
                    )
                except (DecodeError, OSError) as error:
                    found = error if isinstance(error, DecodeError) else DecodeError(str(error))
                    failed[row] = Failure(row, found)
                    pixels = np.zeros((512, 512, kind.channels), np.uint8)
                images.append(pixels)
            placed = self.plan.resolve(
                draws, np.array([p.shape[:2] for p in images]).reshape(-1, 2)
            )
            for row, error in placed.errors.items():
                said = f"{column.describe(int(draws.indices[row]))}: {error}"
                failed.setdefault(row, Failure(row, DecodeError(said)))
            shapes = {(int(h), int(w)) for h, w in placed.window[:, 2:]}
            if len(shapes | ({self.plan.out_size} - {None})) > 1 and not placed.errors:
                raise ConfigurationError("images of one batch differ in size; add a Resize.")
            height, width = self.plan.out_size or shapes.pop()
            out = np.zeros((len(draws), height, width, kind.channels), np.uint8)
            for row in range(len(draws)):
                if row not in failed:
                    render_into(
                        images[row],
                        box=placed.box[row],
                        size=placed.size[row],
                        window=placed.window[row],
                        flip=placed.flip[row],
                        resampling=kind.resampling(self.plan),
                        out=out[row],
                    )
            batch.columns[name] = out
        batch.columns = {name: batch.columns[name] for name in self.source.columns}
        batch.failures = list(failed.values())
        return batch

    def close(self) -> None:
        """Nothing to stop."""

    def explain(self) -> Mapping[str, str]:
        return {"by hand": "in the calling thread"}

"""`fastload look`: what the model will see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fastload.cli.commands import Format, Split
from fastload.errors import counted
from fastload.terminal import output, plain_errors


def look(
    source: Annotated[
        str, typer.Argument(help="What create_loader takes: a folder of classes, COCO, YOLO...")
    ],
    split: Split = None,
    format: Format = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="Your transform, as file.py:name; a function without arguments is called. Its "
            "file is run. Without it: a random crop and a flip, which is left out where it is not "
            "known which keypoints are left and right."
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="In place of --transform: a pipeline of fastload.pipelines, such as dinov2. One "
            "that there is not: the error has the names."
        ),
    ] = None,
    pipeline_option: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument of the pipeline, NAME=VALUE, such as crop_size=176 or "
            "local_crops_scale=[0.1,0.3]. May be given several times."
        ),
    ] = None,
    masks: Annotated[
        bool,
        typer.Option("--masks", help="Draw a mask of each object, as open_source(masks=True)."),
    ] = False,
    samples: Annotated[
        str,
        typer.Option(
            help="What a sample is: images; objects, each with its image; poses, those that are no "
            "crowd and have a labelled keypoint: as open_source(samples=...)."
        ),
    ] = "images",
    keypoint_pairs: Annotated[
        str | None,
        typer.Option(
            help="Keypoints that change places in mirrored pictures, counted from 0: 1-2,3-4; none "
            "for none. Without it: as the names in COCO's file say."
        ),
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="How many samples, spread evenly.")] = 12,
    versions: Annotated[int, typer.Option(min=0, help="How often each is transformed.")] = 3,
    size: Annotated[int, typer.Option(min=8, help="Pixels of the crop without a transform.")] = 320,
    seed: Annotated[int, typer.Option(help="Every random choice follows from it.")] = 0,
    to: Annotated[Path, typer.Option("--output", help="The page to write.")] = Path("look.html"),
) -> None:
    """Draw boxes, outlines, points, masks and labels of samples of SOURCE, as stored and as a
    transform makes them, on a page for a browser."""
    with plain_errors():
        import fastload
        from fastload.errors import ConfigurationError
        from fastload.files import check_output, replacing
        from fastload.pipelines import named
        from fastload.sources.keypoints import pairs_of, unpaired
        from fastload.tools.look.page import page
        from fastload.tools.look.samples import default_transform, shown_rows, transform_in

        check_output(to, "--output")
        if pipeline is not None and transform is not None:
            raise ConfigurationError("--pipeline, --transform: give one of the two.")
        if pipeline is None and pipeline_option:
            raise ConfigurationError("--pipeline-option: it is for --pipeline; give both.")
        chosen: Any = None
        if pipeline is not None:
            chosen = named.transform_named(pipeline, pipeline_option or ())
        opened = fastload.open_source(
            source,
            split=split,
            masks=masks,
            format=format,
            keypoint_pairs=None if keypoint_pairs is None else pairs_of(keypoint_pairs),
            samples=cast(Any, samples),  # `open_source` says which there are
        )
        shown = opened.source
        if transform is not None:
            chosen = transform_in(transform)
        elif pipeline is None:
            chosen = default_transform(size, shown)
        words = repr(chosen) if pipeline is None else named.shown(pipeline, pipeline_option or ())
        rows = shown_rows(shown, chosen, count=images, versions=versions, seed=seed)
        text = page(
            rows,
            title=shown.name,
            summary=shown.summary,
            transform=words,
            classes=shown.classes,
        )
        with replacing(to) as part:
            part.write_text(text, encoding="utf-8")
        count = f"{counted(len(rows), 'sample')} of {shown.summary}"
        output().print(f"{to}  {count}", soft_wrap=True)
        if transform is None and pipeline is None and (name := unpaired(shown)) is not None:
            output().print(
                f"Not mirrored: which points of {name!r} are left and right is not known. Give "
                "--keypoint-pairs, such as 1-2,3-4, or none.",
                soft_wrap=True,
                markup=False,
            )

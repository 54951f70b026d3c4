"""Several views of an image: the same from every backend, out of one decoding, and as DataLoader
has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from fastload import Views
from fastload.backends.cache import CacheOptions
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry import View
from fastload.native import NativePool, fuse
from fastload.recipe import Recipe
from fastload.sources import open_source
from tests.images import photo, png, write_photo_folder


def crop(size: int, least: float = 0.3, *then: Any) -> v2.Compose:
    convert = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose(
        [v2.RandomResizedCrop(size, scale=(least, 1.0)), v2.RandomHorizontalFlip(), *then, *convert]
    )


TWO_AND_ONE = Views(crop(24), crop(24), crop(12, 0.05))
BACKENDS = ("torch", "turbojpeg", "cache", "dali")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo_folder(tmp_path_factory.mktemp("views"))


def batches(source: Any, transform: Any, backend: str, cache: Path, **options: Any) -> list[Any]:
    if backend == "dali":
        pytest.importorskip("nvidia.dali")
    if backend == "cache":
        options["options"] = CacheOptions(directory=cache / "cache", progress=False)
    workers = int(backend not in ("torch", "auto"))
    with fastload.create_loader(
        source,
        4,
        shuffle=True,
        transform=transform,
        backend=backend,
        num_workers=workers,
        **options,
    ) as loader:
        return list(loader)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_serves_the_same_views(folder: Path, backend: str, tmp_path: Path) -> None:
    expected = batches(folder, TWO_AND_ONE, "torch", tmp_path, pin_memory=False)
    ours = batches(folder, TWO_AND_ONE, backend, tmp_path)
    for (views, labels), (others, other_labels) in zip(ours, expected, strict=True):
        assert type(views) is list
        assert [view.shape[2:] for view in views] == [(24, 24), (24, 24), (12, 12)]
        assert torch.equal(labels, other_labels)
        for view, other in zip(views, others, strict=True):
            # DALI resamples in its own way.
            assert (
                (view - other).abs().mean() < 0.02
                if backend == "dali"
                else torch.equal(view, other)
            )


def test_each_view_has_random_numbers_of_its_own_and_those_of_a_recipe_alone(
    folder: Path, tmp_path: Path
) -> None:
    (first, second, _), _ = batches(folder, TWO_AND_ONE, "turbojpeg", tmp_path)[0]
    assert not torch.equal(first, second)
    alone = batches(folder, crop(24), "turbojpeg", tmp_path)[0][0]
    assert torch.equal(first, alone), "the first view is what its transform makes by itself"


def test_shared_steps_are_drawn_once(folder: Path, tmp_path: Path) -> None:
    shared = v2.Compose([v2.RandomResizedCrop(24), Views(v2.RandomHorizontalFlip(p=1.0), None)])
    for views, _ in batches(folder, shared, "turbojpeg", tmp_path):
        assert torch.equal(views[0].flip(-1), views[1])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_transforms_is_refused_with_both_spellings(
    folder: Path, kind: type, nested: bool, tmp_path: Path
) -> None:
    """People write `[RandomResizedCrop(64), RandomHorizontalFlip()]` and mean steps."""
    steps = kind([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
    with pytest.raises(
        ConfigurationError,
        match=r"transform: a (list|tuple) \(RandomResizedCrop, RandomHorizontalFlip\).*"
        r"v2\.Compose\(\[\.\.\.\]\).*fastload\.Views\(\.\.\.\)",
    ):
        batches(folder, v2.Compose([v2.Identity(), steps]) if nested else steps, "auto", tmp_path)


def test_opaque_views_run_as_they_are(folder: Path, tmp_path: Path) -> None:
    class Blur:
        def __call__(self, image: Image.Image) -> Image.Image:
            return image.resize((20, 20)).rotate(90)

    made = batches(
        folder, Views(v2.Compose([Blur(), v2.ToImage()]), v2.Resize((8, 8))), "auto", tmp_path
    )
    for views, _ in made:
        assert type(views) is list
        assert [tuple(view.shape[1:]) for view in views] == [(3, 20, 20), (3, 8, 8)]
    with pytest.raises(fastload.UnsupportedTransformError, match="Blur"):
        fastload.create_loader(folder, transform=Views(Blur(), None), backend="turbojpeg")


def test_under_a_plain_dataloader_and_adopted(folder: Path) -> None:
    """A deterministic transform: both loaders make the same of it."""
    transform = Views(
        v2.Compose([v2.Resize((16, 16)), v2.ToImage()]),
        v2.Compose([v2.CenterCrop(8), v2.ToImage()]),
    )
    existing = DataLoader(ImageFolder(str(folder), transform), 4)
    with fastload.from_dataloader(existing) as loader:
        assert "turbojpeg" in str(loader.explain())
        for (ours, our_labels), (theirs, labels) in zip(loader, existing, strict=True):
            assert torch.equal(our_labels, labels)
            for view, other in zip(ours, theirs, strict=True):
                assert (view.int() - other.int()).abs().max() <= 2


def small(image: Image.Image) -> Any:
    return np.array(image.resize((7, 5)))


def flat(image: Image.Image) -> Any:
    return small(image).ravel()


def mean(image: Image.Image) -> float:
    return float(small(image).mean())


@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("functions", [(small, small), (small, None), (None, flat), (mean, small)])
def test_what_functions_make_of_an_image_is_batched_as_by_a_dataloader(
    folder: Path, functions: tuple[Any, ...], adopted: bool
) -> None:
    """Arrays keep their axes; vectors and numbers are views too."""
    crop = v2.Compose([v2.CenterCrop(8), v2.ToImage()])
    transform = Views(*(function or crop for function in functions))
    existing = DataLoader(ImageFolder(str(folder), transform), 4)
    with (
        fastload.from_dataloader(existing)
        if adopted
        else fastload.create_loader(folder, 4, transform=transform, num_workers=0)
    ) as loader:
        for (ours, _), (theirs, _) in zip(loader, existing, strict=True):
            assert len(ours) == len(theirs)
            for view, other in zip(ours, theirs, strict=True):
                assert (view.dtype, view.shape) == (other.dtype, other.shape)
                assert torch.equal(view, other)


@pytest.mark.parametrize("backend", ["torch", "turbojpeg", "cache"])
def test_views_resume_and_are_substituted(tmp_path: Path, backend: str) -> None:
    folder = write_photo_folder(tmp_path / "photos")
    bad = sorted(folder.rglob("*.jpg"))[2]
    bad.write_bytes(bad.read_bytes()[:200])
    expected = batches(folder, TWO_AND_ONE, "torch", tmp_path, on_error="substitute")
    options: dict[str, Any] = {"on_error": "substitute", "backend": backend, "shuffle": True}
    options["num_workers"] = int(backend != "torch")
    if backend == "cache":
        options["options"] = CacheOptions(directory=tmp_path / "cache", progress=False)
    with fastload.create_loader(folder, 4, transform=TWO_AND_ONE, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with fastload.create_loader(folder, 4, transform=TWO_AND_ONE, **options) as loader:
        loader.load_state_dict(state)
        for (ours, labels), (theirs, other_labels) in zip(loader, expected[1:], strict=True):
            assert torch.equal(labels, other_labels)
            assert all(map(torch.equal, ours, theirs))
    with fastload.create_loader(
        folder, 4, transform=Views(crop(24), crop(12)), **options
    ) as loader:
        with pytest.raises(fastload.StateMismatchError):
            loader.load_state_dict(state)


@pytest.mark.parametrize("opaque", [False, True])
def test_masks_have_views_too(tmp_path: Path, opaque: bool) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for n in range(4):
        left = np.zeros((40, 60, 3), np.uint8)
        left[:, : 10 + 2 * n] = 255
        (tmp_path / "images" / f"{n}.png").write_bytes(png(left))
        (tmp_path / "masks" / f"{n}.png").write_bytes(png(left[..., 0] // 255))
    first: Any = v2.Resize((20, 30), interpolation=v2.InterpolationMode.NEAREST)
    if opaque:
        first = v2.Compose([v2.ElasticTransform(alpha=0.0, sigma=0.3, fill=None), first])
    flipped = v2.Compose([v2.RandomHorizontalFlip(p=1.0), v2.CenterCrop((40, 60))])
    for images, masks in batches(tmp_path, Views(first, flipped), "auto", tmp_path):
        assert [tuple(mask.shape[1:]) for mask in masks] == [(20, 30), (40, 60)]
        for image, mask in zip(images, masks, strict=True):
            assert torch.equal(image[:, 0] > 0, mask > 0)
        assert (masks[0][:, :, 0] == 1).all()
        assert (masks[1][:, :, -1] == 1).all()


def test_a_data_set_that_gives_images_by_its_own_code(folder: Path, tmp_path: Path) -> None:
    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return Image.fromarray(photo(30, 40, seed=index)), index

    for views, labels in batches(Own(), TWO_AND_ONE, "auto", tmp_path):
        assert [tuple(view.shape) for view in views] == [
            (len(labels), 3, n, n) for n in (24, 24, 12)
        ]


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        Views()
    with pytest.raises(ConfigurationError, match="not callable"):
        Views(v2.Resize(4), 7)
    with pytest.raises(ConfigurationError, match="several views"):
        fastload.create_loader(
            folder, transform=TWO_AND_ONE, batch_transform=v2.MixUp(num_classes=3)
        )


def test_after_views_nothing_is_placed() -> None:
    split = Recipe.from_transform(
        v2.Compose([Views(v2.Resize(4), None), v2.Normalize([0.5], [0.5])])
    ).split()
    assert split.opaque is not None
    assert "put it into each" in split.reasons[-1]


def test_views_as_a_transform() -> None:
    image, mask = torch.zeros(3, 4, 4), tv_tensors.Mask(torch.ones(1, 4, 4))
    first, second = Views([lambda image: image + 1, None])(image)
    assert torch.equal(first, image + 1)
    assert second is image
    images, masks = Views(v2.Identity(), None)(image, mask)
    assert len(images) == len(masks) == 2
    assert all(isinstance(m, tv_tensors.Mask) for m in masks)


@pytest.mark.parametrize("exif", [False, True])
def test_one_decoding_makes_the_pixels_of_several(folder: Path, exif: bool) -> None:
    """Boxes that overlap, that lie apart, and that are the whole image."""
    source = open_source(folder).source
    files = [source.encoded["image"].read(n) for n in range(len(source))]
    transforms = [
        crop(24, 0.01),
        crop(9, 0.01),
        v2.Compose([v2.Resize(30), v2.CenterCrop(28)]),
        crop(40, 0.9),
    ]
    plans = [*Recipe.from_transform(Views(*transforms)).split().geometries]
    pool, settings = NativePool(2), fastload.files.DecodeSettings(exif_orientation=exif)
    for epoch in range(5):
        draws = Draws(3, epoch, np.arange(len(files)))

        def view(plan: Any, draws: Draws = draws) -> View:
            assert plan.out_size is not None
            out = np.empty((len(files), *plan.out_size, 3), np.uint8)
            return View(fuse(plan, draws), plan.resampling, out)

        together, apart = [view(plan) for plan in plans], [view(plan) for plan in plans]
        assert pool.decode_views(files, together, settings=settings).wait() == []
        for one in apart:
            assert pool.decode_views(files, [one], settings=settings).wait() == []
        for one, other in zip(together, apart, strict=True):
            np.testing.assert_array_equal(one.out, other.out)
    assert sum(pool.decoded.values()) == 5 * len(files) * 5, (
        "once for the views together, once for each apart"
    )

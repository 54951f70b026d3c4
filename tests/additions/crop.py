class CornerCrop:
    """A transform of this file, for single images: `size` pixels square, from one of the lower
    corners."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any) -> Any:
        raise NotImplementedError("it is drawn by LowerCornerCrop")


@register
@dataclass(frozen=True)
class LowerCornerCrop(GeometryOperation):
    transforms = (CornerCrop,)
    uniforms = 1

    size: Size

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> LowerCornerCrop:
        return cls((transform.size, transform.size))

    @property
    def out_size(self) -> Size:
        return self.size

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        target = np.array([self.size], dtype=np.int64)
        composition.fail((composition.extent < target).any(axis=1), "too small for the corner")
        start = np.maximum(composition.extent - target, 0)
        start[:, 1] *= uniforms[:, 0] < 0.5
        composition.crop(start, target)

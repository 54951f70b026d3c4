@register
@dataclass(frozen=True)
class RandomInvert(PixelOperation):
    transforms = (v1.RandomInvert, v2.RandomInvert)
    pointwise = True

    p: float = 0.5

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomInvert:
        return cls(float(transform.p))

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        chosen = draws.uniform(stream, 1)[:, 0] < self.p
        whole = 1 if images.is_floating_point() else 255
        return choose_rows(chosen, whole - images, images)

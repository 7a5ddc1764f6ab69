r"""Image corruptions after CIFAR-10-C, in PyTorch.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
The constants in CORRUPTIONS are those of CIFAR-10-C (for 32x32 images), not those of ImageNet-C. Differences from the
original code: values are rounded to bytes, not truncated; `motion_blur` reimplements ImageMagick's one-sided kernel;
all random numbers come from the given generator. The first ten kinds also work on grey images; FedSelect's ten clients
use them, one kind per client.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

# Each function takes images v [m, c, h, w] in 0..1 and returns corrupted images, not yet clipped to 0..1.


def gaussian_noise(v: Tensor, sigma: float, g: Generator) -> Tensor:
    """v + σ ε, ε ~ N(0, 1) for every value."""
    return v + sigma * torch.randn(v.shape, generator=g)


def shot_noise(v: Tensor, photons: float, g: Generator) -> Tensor:
    """Poisson(λ v) / λ."""
    return torch.poisson(v * photons, generator=g) / photons


def impulse_noise(v: Tensor, amount: float, g: Generator) -> Tensor:
    """Salt-and-pepper noise: a value becomes 0 or 1, each with probability amount / 2."""
    u = torch.rand(v.shape, generator=g)
    return torch.where(u < amount / 2, 0.0, torch.where(u < amount, 1.0, v))


def speckle_noise(v: Tensor, sigma: float, g: Generator) -> Tensor:
    """v + σ v ε, ε ~ N(0, 1) for every value."""
    return v + v * sigma * torch.randn(v.shape, generator=g)


def gaussian_blur(v: Tensor, sigma: float, _g: Generator) -> Tensor:
    """Gaussian kernel truncated at 4 σ; border pixels are repeated."""
    reach = int(4 * sigma + 0.5)
    row = _gaussian(torch.arange(-reach, reach + 1), sigma)
    return _filtered(v, row[:, None] * row, "replicate")


def defocus_blur(v: Tensor, disk: tuple[float, float], _g: Generator) -> Tensor:
    """Kernel: a disk of the given radius, smoothed by a 3x3 Gaussian; the image is mirrored at its border."""
    radius, softness = disk
    side = torch.arange(-3, 4)
    flat = (side[:, None] ** 2 + side**2 <= radius**2).float()
    row = _gaussian(torch.arange(-1, 2), softness)
    kernel = functional.conv2d(flat[None, None] / flat.sum(), (row[:, None] * row)[None, None], padding=1)
    return _filtered(v, kernel[0, 0], "reflect")


def motion_blur(v: Tensor, path: tuple[int, float], g: Generator) -> Tensor:
    """Weighted mean along a line whose angle is drawn from ±45° for each image; border pixels are repeated."""
    radius, sigma = path
    m, _, h, w = v.shape
    angle = (torch.rand(m, generator=g) - 0.5) * torch.pi / 2
    image, out = torch.arange(m)[:, None, None], torch.zeros_like(v)
    for step, weight in enumerate(_gaussian(torch.arange(2 * radius + 1), sigma)):
        rows = torch.arange(h) + torch.ceil(step * angle.sin() - 0.5).long()[:, None]  # [m, h]
        columns = torch.arange(w) + torch.ceil(step * angle.cos() - 0.5).long()[:, None]  # [m, w]
        moved = v[image, :, rows.clamp(0, h - 1)[:, :, None], columns.clamp(0, w - 1)[:, None, :]]  # [m, h, w, c]
        out += weight * moved.permute(0, 3, 1, 2)
    return out


def brightness(v: Tensor, added: float, _g: Generator) -> Tensor:
    """Add to the value of hue, saturation, value (HSV); hue and saturation are unchanged."""
    value = v.amax(1, keepdim=True)
    lifted = (value + added).clamp(0, 1)
    return torch.where(value > 0, v * lifted / value.clamp_min(1e-12), lifted)


def contrast(v: Tensor, factor: float, _g: Generator) -> Tensor:
    """Scale the difference of each channel from its mean."""
    mean = v.mean((2, 3), keepdim=True)
    return (v - mean) * factor + mean


def pixelate(v: Tensor, share: float, _g: Generator) -> Tensor:
    """Reduce the side to a fraction ``share`` by box averages, then enlarge by repeating pixels."""
    for axis in (2, 3):
        side = v.shape[axis]
        small = max(1, int(share * side))
        matrix = _boxes(side, small) @ _boxes(small, side)  # [side, side], shrinks and enlarges
        v = torch.tensordot(v, matrix, dims=([axis], [1])).movedim(3, axis)
    return v


def saturate(v: Tensor, change: tuple[float, float], _g: Generator) -> Tensor:
    """HSV saturation s -> a s + b; a grey pixel has the hue red. Colour images only."""
    factor, added = change
    value = v.amax(1, keepdim=True)  # HSV: value = max(R, G, B), saturation = 1 - min(R, G, B) / value
    saturation = 1 - v.amin(1, keepdim=True) / value.clamp_min(1e-12)
    new = (factor * saturation + added).clamp(0, 1)
    red = value * (1 - new * torch.tensor([0.0, 1.0, 1.0])[:, None, None])
    return torch.where(saturation > 0, value - (value - v) * new / saturation.clamp_min(1e-12), red)


def _boxes(after: int, before: int) -> Tensor:
    """Pillow's BOX filter as a matrix [after, before]: the mean of the pixels whose centres lie in the box."""
    centre = (torch.arange(after)[:, None] + 0.5) * before / after  # of each output pixel, in input pixels
    away = (torch.arange(before) + 0.5 - centre) / max(before / after, 1.0)
    inside = ((away > -0.5) & (away <= 0.5)).float()
    return inside / inside.sum(1, keepdim=True)


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    weight = torch.exp(-(distance.float() ** 2) / (2 * sigma**2))
    return weight / weight.sum()


def _filtered(v: Tensor, kernel: Tensor, border: str) -> Tensor:
    """Each channel of v [m, c, h, w] correlated with the kernel [k, k], k odd."""
    m, c, h, w = v.shape
    reach = len(kernel) // 2
    # One channel per "image", so that a single convolution filters all channels alike.
    padded = functional.pad(v.reshape(m * c, 1, h, w), (reach,) * 4, mode=border)
    return functional.conv2d(padded, kernel[None, None]).reshape(v.shape)


CORRUPTIONS: dict[str, tuple[Callable[..., Tensor], tuple]] = {  # kind -> function, constants of severity 1 to 5
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": (speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20)),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "motion_blur": (motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "brightness": (brightness, (0.05, 0.10, 0.15, 0.20, 0.30)),
    "contrast": (contrast, (0.75, 0.50, 0.40, 0.30, 0.15)),
    "pixelate": (pixelate, (0.95, 0.90, 0.85, 0.75, 0.65)),
    "saturate": (saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))),
}


def corrupt(x: Tensor, kind: str, severity: int, generator: Generator) -> Tensor:
    """A corrupted copy of images [m, c, h, w] uint8; severity 1 (mild) to 5 (strong).

    Raises ValueError for an unknown kind, a severity outside 1..5, images that are not uint8, and "saturate" on grey
    images.
    """
    if kind not in CORRUPTIONS:
        raise ValueError(f"corruption {kind!r} is unknown; choose one of {', '.join(CORRUPTIONS)}")
    if severity not in range(1, 6):
        raise ValueError(f"corruption severity={severity} is outside 1..5")
    if x.dtype != torch.uint8 or x.ndim != 4:
        raise ValueError(f"corruption {kind!r} needs uint8 images [m, c, h, w], not {x.dtype} {list(x.shape)}")
    if kind == "saturate" and x.shape[1] != 3:
        raise ValueError(f"corruption 'saturate' needs 3 channels, not {x.shape[1]}; choose another kind")
    function, constants = CORRUPTIONS[kind]
    changed = function(x.to(torch.float32) / 255, constants[int(severity) - 1], generator)
    return (255 * changed).round_().clamp_(0, 255).to(torch.uint8)

"""How well measures of sharpness tell blurred pictures from sharp ones: ROC AUC per kind of blur and measure.

    python benchmarks/sharpness.py [--folder PHOTOS] [--json]

The pictures are drawn here (cartons and jars on a table, packshots on white); `--folder` adds real ones, which should be
sharp. Each is also kept with grain and as a small JPEG, which must not count as blur, and is blurred in each way listed
below, at the scale where its long side has 512 px. An AUC of 1 tells all apart, 0.5 is chance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples import labels, photos
from prefilters import DecodeLimits, ProbeError
from prefilters.media import MediaKind, sniff_file
from prefilters.probes.image import load_upright
from prefilters.probes.sharpness import MEASURED_SIDE, sharpness

Grey = npt.NDArray[np.uint8]
BANDS = ((0.30, "very blurry"), (0.36, "blurry"), (0.45, "soft"), (1.01, "fine"))


def reblur_ratio(grey: Grey) -> float:
    """The one in use; a featureless picture counts as sharp, since it is never called blurry."""
    found = sharpness(grey)
    return 1.0 if found is None else found


def laplacian_variance(grey: Grey) -> float:
    """The common one."""
    return float(cv2.Laplacian(grey, cv2.CV_64F).var())


def tenengrad(grey: Grey) -> float:
    """Mean squared Sobel gradient."""
    across, down = (cv2.Sobel(grey, cv2.CV_64F, *axis) for axis in ((1, 0), (0, 1)))
    return float((across**2 + down**2).mean())


MEASURES: dict[str, Callable[[Grey], float]] = {
    "re-blur ratio": reblur_ratio,
    "Laplacian variance": laplacian_variance,
    "Tenengrad": tenengrad,
}


def gaussian(sigma: float) -> Callable[[Grey], Grey]:
    return lambda grey: np.asarray(cv2.GaussianBlur(grey, (0, 0), sigma), np.uint8)


def motion(length: int, degrees: float) -> Callable[[Grey], Grey]:
    kernel = np.zeros((length, length), np.float32)
    kernel[length // 2] = 1
    turn = cv2.getRotationMatrix2D((length / 2 - 0.5, length / 2 - 0.5), degrees, 1)
    kernel = np.asarray(cv2.warpAffine(kernel, turn, (length, length)), np.float32)
    return lambda grey: np.asarray(cv2.filter2D(grey, -1, kernel / kernel.sum()), np.uint8)


def defocus(radius: int) -> Callable[[Grey], Grey]:
    disc = cv2.circle(np.zeros((2 * radius + 1, 2 * radius + 1), np.float32), (radius, radius), radius, 1, -1)
    return lambda grey: np.asarray(cv2.filter2D(grey, -1, disc / disc.sum()), np.uint8)


def enlarged(factor: float) -> Callable[[Grey], Grey]:
    def enlarge(grey: Grey) -> Grey:
        small = cv2.resize(grey, None, fx=1 / factor, fy=1 / factor, interpolation=cv2.INTER_AREA)
        return np.asarray(cv2.resize(small, grey.shape[::-1], interpolation=cv2.INTER_CUBIC), np.uint8)

    return enlarge


def compressed(quality: int) -> Callable[[Grey], Grey]:
    def compress(grey: Grey) -> Grey:
        _, data = cv2.imencode(".jpg", grey, [cv2.IMWRITE_JPEG_QUALITY, quality])
        return np.asarray(cv2.imdecode(data, cv2.IMREAD_GRAYSCALE), np.uint8)

    return compress


def grainy(grey: Grey) -> Grey:
    grain = np.random.default_rng(1).normal(0, 6, grey.shape)
    return (grey + grain).clip(0, 255).astype(np.uint8)


def blurred_then_grainy(grey: Grey) -> Grey:
    return grainy(gaussian(2.5)(grey))


BLURS: dict[str, Sequence[Callable[[Grey], Grey]]] = {
    "Gaussian, 1.5 px": [gaussian(1.5)],
    "Gaussian, 2 px": [gaussian(2.0)],
    "Gaussian, 3 px": [gaussian(3.0)],
    "motion, 9 px": [motion(9, degrees) for degrees in (0, 45, 90)],
    "motion, 15 px": [motion(15, degrees) for degrees in (0, 45, 90)],
    "defocus, 3 px": [defocus(3)],
    "defocus, 5 px": [defocus(5)],
    "enlarged from 1/3": [enlarged(3)],
    "enlarged from 1/5": [enlarged(5)],
    "blur under grain": [blurred_then_grainy],
    "JPEG quality 8": [compressed(8)],
}
HARMLESS: Sequence[Callable[[Grey], Grey]] = (lambda grey: grey, grainy, compressed(60))


def main() -> None:
    parser = argparse.ArgumentParser(description="ROC AUC of measures of sharpness")
    parser.add_argument("--folder", type=Path, help="real photos that are sharp")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    pictures = [*drawn(), *(real(asked.folder) if asked.folder else ())]
    sharp = [keep(grey) for grey in pictures for keep in HARMLESS]
    blurred = {name: [blur(grey) for grey in pictures for blur in blurs] for name, blurs in BLURS.items()}
    table = {
        name: {m: auc(sharp, worse, measure) for m, measure in MEASURES.items()} for name, worse in blurred.items()
    }
    if asked.json:
        print(json.dumps({"pictures": len(pictures), "auc": table}))
        return
    print(f"{len(pictures)} pictures, {len(sharp)} counted as sharp\n")
    print(f"{'AUC':20}" + "".join(f"{name:>20}" for name in MEASURES))
    for name, row in table.items():
        print(f"{name:20}" + "".join(f"{value:20.3f}" for value in row.values()))
    print(f"\n{'share per band':20}" + "".join(f"{band:>14}" for _, band in BANDS) + f"{'median':>10}")
    for name, group in {"sharp": sharp, **blurred}.items():
        print(band_row(name, [reblur_ratio(grey) for grey in group]))


def drawn() -> Iterator[Grey]:
    """The project's own pictures, at the size of measurement and, being smaller uploads, at 300 px."""
    ean = labels.in_house_ean(1001)
    scenes = [
        photos.tea_carton(ean),
        photos.jasmine_carton(ean),
        photos.soap_carton(ean, smeared=False),
        photos.honey_jar(ean),
        photos.candle_carton(),
        photos.mug_packshot(size=900),
        photos.mug_packshot(size=900, glaze=(205, 200, 190)),
    ]
    for scene in scenes:
        yield to_grey(np.asarray(scene, np.uint8), MEASURED_SIDE)
        yield to_grey(np.asarray(scene, np.uint8), 300)


def real(folder: Path) -> Iterator[Grey]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and sniff_file(path).kind is MediaKind.IMAGE:
            try:
                yield to_grey(load_upright(path, DecodeLimits()), MEASURED_SIDE)
            except ProbeError as exc:
                print(f"left out {path.name}: {exc}", file=sys.stderr)


def to_grey(rgb: npt.NDArray[np.uint8], side: int) -> Grey:
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    scale = min(1.0, side / max(grey.shape))
    size = (max(1, round(grey.shape[1] * scale)), max(1, round(grey.shape[0] * scale)))
    return np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), np.uint8)


def auc(sharp: Sequence[Grey], blurred: Sequence[Grey], measure: Callable[[Grey], float]) -> float:
    """The chance that a sharp picture measures higher than a blurred one; a tie counts half."""
    high, low = (np.array([measure(grey) for grey in group]) for group in (sharp, blurred))
    wins = (high[:, None] > low[None, :]).mean() + 0.5 * (high[:, None] == low[None, :]).mean()
    return round(float(wins), 4)


def band_row(name: str, values: Sequence[float]) -> str:
    edges = [0.0, *(upper for upper, _ in BANDS)]
    counts, _ = np.histogram(values, bins=edges)
    return f"{name:20}" + "".join(f"{count / len(values):14.0%}" for count in counts) + f"{np.median(values):10.2f}"


if __name__ == "__main__":
    main()

"""Facts about a picture's pixels, and the picture itself as a person sees it: upright, on white, in sRGB.

Everything here decodes, so it runs in a child of the decoder pool; `header` alone decodes nothing.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
import pi_heif
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, ImageCms, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.media import Media, MediaKind, sniff_file
from prefilters.probes.completeness import Source, ends_early, lacks_only_end_marker
from prefilters.probes.image_header import ImageHeader, header, header_facts, read_header
from prefilters.probes.sharpness import MEASURED_SIDE, Grey, sharpness

__all__ = ["header", "load_upright", "model_image", "opened", "pixels"]

Rgb = NDArray[np.uint8]
_Decoded = TypeVar("_Decoded")

pi_heif.register_heif_opener(thumbnails=False)
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
ImageFile.LOAD_TRUNCATED_IMAGES = False
Image.MAX_IMAGE_PIXELS = None  # each opening is held against our own limit, before a pixel is decoded
PngImagePlugin.MAX_TEXT_CHUNK = 1 << 20

_PILLOW_FORMATS = {
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "gif": "GIF",
    "heic": "HEIF",
    "avif": "AVIF",
    "tiff": "TIFF",
    "bmp": "BMP",
}
_BLANK_SPREAD = 16
"""Grey levels between the darkest and the lightest place of a picture that shows nothing."""
_DARK_LEVEL, _LIGHT_LEVEL = 26, 242
"""A tenth and 95 % of full luminance: darker, or lighter, than these levels counts."""
_WHITE, _DARK_GROUND = 255, 32
_LIGHT_INK = 215.0
"""Mean luminance of what is opaque above which it would vanish on white."""
_SEE_THROUGH_SHARE = 0.2
_MOST_PROFILE_BYTES = 4 * 1024 * 1024
_SRGB = ImageCms.createProfile("sRGB")
_MODEL_QUALITY = 85


def pixels(path: Path | str, media: Media, limits: DecodeLimits) -> dict[str, FactValue]:
    """The `image.*` facts of cost class PIXELS, and `decode.status`.

    Raises `ProbeError`: `truncated` where the file ends before its pixels do, `corrupt` where they cannot be decoded.
    12 MP: JPEG about half of a full decode, PNG and WebP hardly more than one.
    """
    (grey, mode), near_complete = _whole_or_mended(path, media, lambda source: _measured_grey(source, media, limits))
    facts: dict[str, FactValue] = {
        "decode.status": DecodeStatus.OK.value,
        "image.mode": mode,
        "image.near_complete": near_complete,
        **_tone_facts(grey),
        **_frame_facts(path, media, limits),
    }
    return facts


def load_upright(path: Path | str, limits: DecodeLimits, *, max_side: int | None = None) -> Rgb:
    """The picture as a person sees it: RGB, height x width x 3, orientation applied, transparency on white.

    On dark instead where the opaque part is light, which would vanish on white. CMYK, 16-bit and ICC colours are
    converted to sRGB. `max_side` bounds the long side, by area averaging. Raises `ProbeError`.
    """
    media = sniff_file(path)
    if media.kind is not MediaKind.IMAGE:
        raise ProbeError(DecodeStatus.CORRUPT, f"{media.description_en}, not a picture")
    rgb, _ = _whole_or_mended(path, media, lambda source: _upright(source, media, limits, max_side))
    return rgb


def model_image(path: Path | str, limits: DecodeLimits, *, max_side: int) -> bytes:
    """A JPEG for a model, rebuilt from the upright pixels: no EXIF, no place where it was taken, nothing hidden."""
    out = io.BytesIO()
    Image.fromarray(load_upright(path, limits, max_side=max_side)).save(out, "JPEG", quality=_MODEL_QUALITY)
    return out.getvalue()


def _whole_or_mended(path: Path | str, media: Media, decode: Callable[[Source], _Decoded]) -> tuple[_Decoded, bool]:
    """What `decode` makes of the file, or of the file with its end marker where only that is missing; and whether so."""
    try:
        return decode(path), False
    except ProbeError as exc:
        mended = lacks_only_end_marker(path, media.format) if exc.status is DecodeStatus.TRUNCATED else None
        if mended is None:
            raise
        return decode(io.BytesIO(mended)), True


def _upright(source: Source, media: Media, limits: DecodeLimits, max_side: int | None) -> Rgb:
    with opened(source, media, limits) as image:
        if max_side is not None:
            _draft(image, max_side, mode=None)
        image.load()
        if max_side is not None:
            image = _reduced(image, max_side)
        ImageOps.exif_transpose(image, in_place=True)
        rgb = np.asarray(_to_rgb(image))
    return rgb if max_side is None else _fitted(rgb, max_side)


@contextmanager
def opened(source: Source, media: Media, limits: DecodeLimits) -> Iterator[Image.Image]:
    """The file in the one decoder that its first bytes name; what that raises comes out as `ProbeError`."""
    try:
        _check_size(source, media, limits)
        with Image.open(source, formats=[_PILLOW_FORMATS[media.format]]) as image:
            if image.width * image.height > limits.max_pixels:
                raise ProbeError(DecodeStatus.RESOURCE_LIMIT, f"{image.width} x {image.height} pixels")
            yield image
    except ProbeError:
        raise
    except MemoryError as exc:
        raise ProbeError(DecodeStatus.RESOURCE_LIMIT, str(exc)) from exc
    except FileNotFoundError:
        raise
    except Exception as exc:  # decoders raise whatever they like on broken files
        status = DecodeStatus.TRUNCATED if ends_early(source, media.format, exc) else DecodeStatus.CORRUPT
        raise ProbeError(status, f"{type(exc).__name__}: {exc}") from exc


def _check_size(source: Source, media: Media, limits: DecodeLimits) -> ImageHeader:
    """Some decoders allocate the picture when they open it, so the header is asked first, also where a caller did."""
    with io.BytesIO(source.getvalue()) if isinstance(source, io.BytesIO) else open(source, "rb") as file:
        found = read_header(file, media.format, most_frames=2)
    facts = header_facts(found)
    if int(facts["image.pixels"]) > limits.max_pixels:
        raise ProbeError(DecodeStatus.RESOURCE_LIMIT, f"{found.width} x {found.height} pixels")
    return found


def _draft(image: Image.Image, side: int, *, mode: str | None) -> None:
    """Let the JPEG decoder scale by 1/2, 1/4 or 1/8, as far as the long side stays at least `side`.

    Most of the cost of a JPEG is then saved, and a cut file is noticed all the same.
    """
    longest = max(image.size)
    if isinstance(image, JpegImagePlugin.JpegImageFile) and longest > side:  # phones' MPO is one too
        wanted = (max(1, image.width * side // longest), max(1, image.height * side // longest))
        image.draft(mode if image.mode in ("RGB", "L") else None, wanted)


def _measured_grey(source: Source, media: Media, limits: DecodeLimits) -> tuple[Grey, str]:
    """The upright grey picture that all tone facts are measured on, and the mode as stored.

    Sharpness is defined at 512 px. A draft below that would have to be enlarged, or be judged by another yardstick
    than all others, so a 12 MP JPEG is decoded at 1/4 (1000 px) rather than at 1/8 (500 px).
    """
    has_colour_key = False
    if media.format == "png":
        with opened(source, media, limits) as image:
            image.verify()  # checks each CRC and the end, which decoding does not; the file must be opened again
            has_colour_key = "transparency" in image.info
    if media.format in ("png", "webp") and not has_colour_key:
        measured = _grey_by_opencv(source, media, limits)
        if measured is not None:
            return measured
    with opened(source, media, limits) as image:
        mode = image.mode
        _draft(image, MEASURED_SIDE, mode="L")
        image.load()
        upright = _reduced(image, MEASURED_SIDE)
        ImageOps.exif_transpose(upright, in_place=True)
        grey = upright if upright.mode == "L" else _to_rgb(upright).convert("L")
        return _fitted(np.asarray(grey), MEASURED_SIDE), mode


def _grey_by_opencv(source: Source, media: Media, limits: DecodeLimits) -> tuple[Grey, str] | None:
    """A plain still by OpenCV, whose WebP takes a quarter and whose PNG two thirds of Pillow's time.

    None on anything but opaque RGB or grey, and on any doubt: Pillow then says what it is, or what is wrong.
    """
    found = _check_size(source, media, limits)
    if found.frames != 1 or found.mode not in ("RGB", "L"):
        return None
    raw = source.getvalue() if isinstance(source, io.BytesIO) else Path(source).read_bytes()
    grey = cv2.imdecode(np.frombuffer(raw, np.uint8), cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION)
    if grey is None or grey.shape != (found.height, found.width):
        return None
    return _turned(_fitted(np.asarray(grey, np.uint8), MEASURED_SIDE), found.orientation), found.mode


def _turned(grey: Grey, orientation: int) -> Grey:
    """`grey` set upright (EXIF 2.3, tag 274)."""
    mirrored = grey[:, ::-1] if orientation in (2, 4, 5, 7) else grey
    quarters = {3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}.get(orientation, 0)
    return np.ascontiguousarray(np.rot90(mirrored, quarters))


def _tone_facts(grey: Grey) -> dict[str, FactValue]:
    counts = np.bincount(grey.ravel(), minlength=256)
    shares = np.cumsum(counts) / grey.size
    low, high = (int(np.searchsorted(shares, share)) for share in (0.01, 0.99))
    darkest, lightest = (int(level) for level in np.flatnonzero(counts)[[0, -1]])
    sharp = sharpness(grey)
    facts: dict[str, FactValue] = {
        "image.featureless": sharp is None,
        "image.brightness": round(float(counts @ np.arange(256)) / grey.size / 255, 4),
        "image.contrast": round((high - low) / 255, 4),
        "image.dark_share": round(float(shares[_DARK_LEVEL - 1]), 4),
        "image.light_share": round(float(1 - shares[_LIGHT_LEVEL]), 4),
        "image.blank": sharp is None and lightest - darkest < _BLANK_SPREAD,
        "image.phash": _perceptual_hash(grey),
    }
    if sharp is not None:
        facts["image.sharpness"] = round(sharp, 4)
    return facts


def _perceptual_hash(grey: Grey) -> str:
    """64 bits: the signs, against their median, of the 8 x 8 lowest frequencies of the picture at 32 x 32."""
    small = cv2.resize(grey, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    low = cv2.dct(small)[:8, :8].flatten()
    bits = low > np.median(low[1:])
    return f"{int(''.join('1' if bit else '0' for bit in bits), 2):016x}"


def _frame_facts(path: Path | str, media: Media, limits: DecodeLimits) -> dict[str, FactValue]:
    """The number of frames where the header could not tell it."""
    with open(path, "rb") as file:
        frames = read_header(file, media.format, most_frames=limits.max_frames + 1, patient=True).frames
    if frames is None and media.format in ("heic", "avif"):
        with opened(path, media, limits) as image:
            frames = int(getattr(image, "n_frames", 1))
    if frames is None:
        raise ProbeError(DecodeStatus.RESOURCE_LIMIT, "too many blocks to count the frames of")
    return {"image.frames": frames, "image.animated": frames > 1}


def _reduced(image: Image.Image, side: int) -> Image.Image:
    """`image` averaged down by a whole factor, its long side still at least `side`: dearer steps then see less."""
    factor = max(image.size) // side
    if factor < 2 or image.mode not in ("L", "RGB", "RGBA", "CMYK", "LA"):
        return image
    # Averaged as they are, transparent pixels would give their hidden colour to their neighbours.
    premultiplied = {"RGBA": "RGBa", "LA": "La"}.get(image.mode)
    orientation, profile = image.getexif(), image.info.get("icc_profile")
    reduced = (image.convert(premultiplied) if premultiplied else image).reduce(factor)
    if premultiplied:
        reduced = reduced.convert(image.mode)
    reduced.info = {"icc_profile": profile, "exif": orientation.tobytes()}
    return reduced


def _fitted(picture: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    height, width = picture.shape[:2]
    if max(height, width) <= side:
        return picture
    whole = max(height, width) // side
    if whole > 1:  # by a whole factor first, which costs a fifth; at most `whole` - 1 pixels of an edge are lost
        kept = picture[: max(height // whole, 1) * whole, : max(width // whole, 1) * whole]
        reduced = (max(kept.shape[1] // whole, 1), max(kept.shape[0] // whole, 1))
        picture = np.asarray(cv2.resize(kept, reduced, interpolation=cv2.INTER_AREA), np.uint8)
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


def _to_rgb(image: Image.Image) -> Image.Image:
    """`image` in sRGB on an opaque ground, whatever mode it comes in."""
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return _from_deep_grey(image).convert("RGB")
    if image.mode == "LAB":
        lab = ImageCms.createProfile("LAB")
        return _present(ImageCms.profileToProfile(image, lab, _SRGB, outputMode="RGB"))
    if image.has_transparency_data:
        return _on_ground(image if image.mode == "RGBA" else image.convert("RGBA"))
    if image.mode in ("RGB", "CMYK", "L") and (profile := image.info.get("icc_profile")):
        return _in_srgb(image, profile)
    return image.convert("RGB")


def _present(image: Image.Image | None) -> Image.Image:
    if image is None:
        raise ProbeError(DecodeStatus.CORRUPT, "the colours could not be converted")
    return image


def _in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """By its ICC profile; a broken or absurd profile is ignored, as viewers do."""
    if len(profile) > _MOST_PROFILE_BYTES:
        return image.convert("RGB")
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return _present(ImageCms.profileToProfile(image, source, _SRGB, outputMode="RGB"))
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError, struct.error):
        return image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """8-bit grey of a deeper one, scaled by the range in use and not clipped.

    16-bit pictures often carry 10, 12 or 14 bits, so the range ends at the next power of two above the largest value.
    """
    levels = np.asarray(image)
    if image.mode == "F":
        low, high = float(np.nanmin(levels)), float(np.nanmax(levels))
        scaled = (np.nan_to_num(levels, nan=low) - low) * (255.0 / max(high - low, 1e-12))
        return Image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    bits = max(8, int(levels.max(initial=0)).bit_length())
    return Image.fromarray((levels.clip(0) >> (bits - 8)).astype(np.uint8))


def _on_ground(rgba: Image.Image) -> Image.Image:
    sample = _reduced(rgba, MEASURED_SIDE)
    alpha = np.asarray(sample.getchannel("A"), np.float32) / 255
    opaque = float(alpha.sum())
    ink = float((np.asarray(sample.convert("RGB").convert("L"), np.float32) * alpha).sum()) / max(opaque, 1e-6)
    vanishes_on_white = opaque > 0 and ink > _LIGHT_INK and float((alpha < 0.5).mean()) > _SEE_THROUGH_SHARE
    level = _DARK_GROUND if vanishes_on_white else _WHITE
    ground = Image.new("RGB", rgba.size, (level, level, level))
    ground.paste(rgba, mask=rgba.getchannel("A"))
    return ground

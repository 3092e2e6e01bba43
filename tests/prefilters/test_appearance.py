"""What a picture shows at a glance: colours by name, background, outline."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from examples import photos
from examples.drawing import jpeg
from prefilters.errors import DecodeStatus, ProbeError
from prefilters.limits import DecodeLimits
from prefilters.pool import DecoderPool
from prefilters.probes.appearance import Appearance, Shape, appearance
from prefilters.reading import read_appearance
from tests import media

LIMITS = DecodeLimits()
RED, BLUE, BLACK, WHITE = (205, 25, 35), (30, 85, 180), (18, 18, 20), (255, 255, 255)

Colour = tuple[int, int, int]
Seen = Callable[[bytes], Appearance]


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    def look(content: bytes) -> Appearance:
        path = tmp_path / "blob"
        path.write_bytes(content)
        return appearance(path, LIMITS)

    return look


def saved(picture: Image.Image, format_: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, format_, **options)
    return out.getvalue()


def drawn(
    kind: str, box: tuple[int, int, int, int], colour: Colour, *, ground: Colour = WHITE, side: int = 800
) -> Image.Image:
    """An `ellipse` or a `rectangle` on an even ground, its edges as soft as a lens draws them."""
    picture = Image.new("RGB", (side, side), ground)
    getattr(ImageDraw.Draw(picture), kind)(box, fill=colour)
    return picture.filter(ImageFilter.GaussianBlur(1))


def bottle(colour: Colour = BLUE) -> Image.Image:
    picture = Image.new("RGB", (600, 900), WHITE)
    pen = ImageDraw.Draw(picture)
    pen.rounded_rectangle((200, 300, 400, 860), 40, fill=colour)
    pen.rectangle((265, 80, 335, 320), fill=colour)
    return picture.filter(ImageFilter.GaussianBlur(1))


def names(found: Appearance) -> list[str]:
    return [colour.name for colour in found.colours]


def test_a_red_ball_on_white_is_red_and_round(seen: Seen) -> None:
    found = seen(saved(drawn("ellipse", (200, 200, 600, 600), RED), "JPEG", quality=85))
    assert names(found) == ["red"]
    assert found.colours[0].share > 0.95
    assert (found.background, found.shape) == ("plain white", Shape.ROUND)
    assert found.object_share == pytest.approx(3.1416 / 16, abs=0.01)


def test_a_blue_bottle_on_white_is_blue_and_tall(seen: Seen) -> None:
    found = seen(saved(bottle(), "JPEG", quality=85))
    assert names(found) == ["blue"]
    assert (found.background, found.shape) == ("plain white", Shape.TALL)


def test_a_bottle_is_as_tall_when_only_its_exif_sets_it_upright(seen: Seen) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = bottle().transpose(Image.Transpose.ROTATE_90)
    assert seen(saved(lying, "JPEG")).shape is Shape.WIDE
    assert seen(saved(lying, "JPEG", exif=exif)).shape is Shape.TALL


def test_a_black_box_on_grey_is_black_and_square(seen: Seen) -> None:
    found = seen(saved(drawn("rectangle", (250, 260, 560, 560), BLACK, ground=(140, 140, 140)), "JPEG"))
    assert names(found) == ["black"]
    assert (found.background, found.shape) == ("plain grey", Shape.SQUARE)
    assert found.object_share == pytest.approx(311 * 301 / 800**2, abs=0.01)


def test_a_mug_with_its_handle_is_neither_round_nor_square(seen: Seen) -> None:
    found = seen(jpeg(photos.mug_packshot(size=800, glaze=(200, 60, 50)), 90))
    assert names(found)[:2] == ["red", "dark red"]
    assert (found.background, found.shape) == ("plain white", Shape.IRREGULAR)


@pytest.mark.parametrize(
    ("ground", "expected"),
    [
        ((255, 255, 255), "plain white"),
        ((246, 247, 245), "plain white"),
        ((214, 214, 212), "plain light"),
        ((30, 31, 33), "plain dark"),
        ((128, 128, 128), "plain grey"),
        ((240, 175, 190), "plain pink"),
        ((222, 200, 165), "plain beige"),
        ((25, 70, 42), "plain dark green"),
    ],
)
def test_a_plain_background_is_named(seen: Seen, ground: Colour, expected: str) -> None:
    found = seen(saved(drawn("ellipse", (200, 200, 600, 600), (250, 215, 40), ground=ground)))
    assert found.background == expected
    assert names(found) == ["yellow"]


@pytest.mark.parametrize(
    ("name", "rgb"),
    [
        ("white", (250, 250, 250)), ("light grey", (200, 200, 200)), ("grey", (128, 128, 128)),
        ("dark grey", (80, 80, 82)), ("black", (15, 15, 15)), ("cream", (245, 235, 205)), ("beige", (210, 188, 155)),
        ("brown", (125, 80, 45)), ("dark brown", (65, 42, 28)), ("red", (200, 30, 30)), ("dark red", (110, 18, 28)),
        ("orange", (240, 120, 30)), ("yellow", (245, 210, 50)), ("olive", (110, 110, 50)),
        ("light green", (160, 215, 135)), ("green", (50, 150, 65)), ("dark green", (25, 70, 42)),
        ("turquoise", (45, 170, 165)), ("light blue", (160, 205, 235)), ("blue", (40, 95, 185)), ("navy", (22, 32, 78)),
        ("purple", (105, 45, 135)), ("lilac", (190, 160, 215)), ("pink", (240, 150, 175)),
    ],
    ids=str,
)  # fmt: skip
def test_a_colour_gets_its_everyday_name(seen: Seen, name: str, rgb: Colour) -> None:
    assert names(seen(media.flat_colour(colour=rgb))) == [name]


def test_two_colours_are_named_by_their_shares(seen: Seen) -> None:
    picture = drawn("rectangle", (200, 200, 599, 599), RED)
    ImageDraw.Draw(picture).rectangle((200, 500, 599, 599), fill=BLUE)
    found = seen(saved(picture))
    assert names(found) == ["red", "blue"]
    assert [colour.share for colour in found.colours] == pytest.approx([0.75, 0.25], abs=0.02)


def test_a_photo_of_a_scene_is_busy_and_has_no_outline(seen: Seen) -> None:
    found = seen(media.label_photo())
    assert (found.background, found.shape, found.object_share) == ("busy", Shape.UNKNOWN, None)
    assert {"brown", "dark green"} <= set(names(found))


def test_confetti_is_busy(seen: Seen) -> None:
    patches = np.random.default_rng(3).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    found = seen(saved(Image.fromarray(patches).resize((600, 600), Image.Resampling.NEAREST)))
    assert (found.background, found.shape, found.object_share) == ("busy", Shape.UNKNOWN, None)


@pytest.mark.parametrize(("colour", "ground"), [(RED, "plain white"), ((250, 240, 90), "plain dark")], ids=str)
def test_a_cut_out_shows_only_what_is_opaque(seen: Seen, colour: Colour, ground: str) -> None:
    picture = Image.new("RGBA", (500, 500), (0, 255, 0, 0))
    ImageDraw.Draw(picture).ellipse((100, 100, 400, 400), fill=(*colour, 255))
    found = seen(saved(picture))
    assert names(found) == ["red" if colour == RED else "yellow"]
    assert (found.background, found.shape) == (ground, Shape.ROUND)


def test_a_soft_shadow_belongs_to_the_ground(seen: Seen) -> None:
    picture = Image.new("RGB", (800, 800), WHITE)
    ImageDraw.Draw(picture).ellipse((180, 560, 720, 680), fill=(190, 190, 190))
    picture = picture.filter(ImageFilter.GaussianBlur(40))
    ImageDraw.Draw(picture).ellipse((220, 220, 620, 620), fill=RED)
    found = seen(saved(picture, "JPEG", quality=90))
    assert names(found) == ["red"]
    assert (found.background, found.shape) == ("plain white", Shape.ROUND)


def test_a_wall_in_falling_light_is_plain(seen: Seen) -> None:
    light = np.linspace(225, 195, 600)[np.newaxis, :, np.newaxis]
    picture = Image.fromarray(np.broadcast_to(light, (600, 600, 3)).astype(np.uint8))
    ImageDraw.Draw(picture).rectangle((100, 250, 500, 400), fill=BLUE)
    found = seen(saved(picture))
    assert (found.background, found.shape) == ("plain light", Shape.WIDE)
    assert names(found) == ["blue"]


def test_the_ground_seen_through_a_ring_is_no_colour_of_it_but_part_of_its_outline(seen: Seen) -> None:
    picture = drawn("ellipse", (200, 200, 600, 600), RED)
    ImageDraw.Draw(picture).ellipse((300, 300, 500, 500), fill=WHITE)
    found = seen(saved(picture))
    assert names(found) == ["red"]
    assert found.shape is Shape.ROUND


def test_of_several_things_none_gives_the_outline(seen: Seen) -> None:
    picture = Image.new("RGB", (800, 400), WHITE)
    for left in (60, 310, 560):
        ImageDraw.Draw(picture).ellipse((left, 110, left + 180, 290), fill=RED)
    found = seen(saved(picture))
    assert (names(found), found.shape) == (["red"], Shape.UNKNOWN)
    assert found.object_share == pytest.approx(3 * 3.1416 * 90**2 / (800 * 400), abs=0.015)


@pytest.mark.parametrize(("colour", "ground"), [(RED, "plain red"), (WHITE, "plain white"), (BLACK, "plain dark")])
def test_a_picture_of_one_colour_is_that_colour_with_nothing_on_it(seen: Seen, colour: Colour, ground: str) -> None:
    found = seen(media.flat_colour(colour=colour))
    assert [named.share for named in found.colours] == [1.0]
    assert (found.background, found.shape, found.object_share) == (ground, Shape.UNKNOWN, 0.0)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 300), (300, 2)], ids=str)
def test_a_tiny_picture_has_colours_and_no_outline(seen: Seen, size: tuple[int, int]) -> None:
    found = seen(media.flat_colour(*size, colour=RED))
    assert (names(found), found.background, found.shape) == (["red"], "plain red", Shape.UNKNOWN)


def test_a_dot_of_a_few_pixels_has_a_colour_and_no_outline(seen: Seen) -> None:
    picture = Image.new("RGB", (16, 16), WHITE)
    ImageDraw.Draw(picture).rectangle((6, 6, 9, 9), fill=RED)
    found = seen(saved(picture))
    assert (names(found), found.shape) == (["red"], Shape.UNKNOWN)


def test_the_same_picture_looks_the_same_each_time(seen: Seen) -> None:
    assert seen(media.packshot()) == seen(media.packshot())


def test_it_is_written_as_plain_json(seen: Seen) -> None:
    found = seen(media.flat_colour(colour=RED))
    assert json.loads(json.dumps(found.to_json())) == {
        "colours": [{"name": "red", "share": 1.0}],
        "background": "plain red",
        "shape": "unknown",
        "object_share": 0.0,
    }


def test_a_broken_file_is_refused(seen: Seen) -> None:
    with pytest.raises(ProbeError) as refused:
        seen(media.truncated())
    assert refused.value.status is DecodeStatus.TRUNCATED


def test_a_child_of_the_pool_looks_and_answers(tmp_path: Path, shared_pool: DecoderPool) -> None:
    path = tmp_path / "blob"
    path.write_bytes(saved(bottle(), "JPEG"))
    found = read_appearance(shared_pool, path, LIMITS)
    assert (names(found), found.shape, type(found.shape)) == (["blue"], Shape.TALL, Shape)


def test_the_answer_is_taken_without_loading_a_decoder() -> None:
    program = (
        "import sys, prefilters.reading, prefilters.probes.look\n"
        "print(sorted({'PIL', 'cv2', 'numpy', 'pi_heif'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

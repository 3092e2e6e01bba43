"""The printed labels of the catalogue's packages, flat, at 8 pixels a millimetre."""

from __future__ import annotations

import cv2
import numpy as np

from examples.drawing import (
    Colour,
    Print,
    blurred,
    ean13,
    leaf,
    paragraph,
    paste,
    rng,
    sheet,
    soft_noise,
    write,
)

CREAM: Colour = (243, 236, 218)
FOREST: Colour = (34, 78, 54)
BERRY: Colour = (150, 24, 44)


def in_house_ean(number: int) -> str:
    """An EAN-13 from the range that GS1 leaves for use inside a shop (prefix 200), with its check digit."""
    digits = f"200{number:09d}"
    odd, even = sum(map(int, digits[0::2])), sum(map(int, digits[1::2]))
    return digits + str(-(odd + 3 * even) % 10)


def tea(ean: str) -> Print:
    """The front of a tea carton: 90 x 140 mm."""
    flat = sheet(720, 1120, CREAM)
    flat[:250] = FOREST
    cv2.line(flat, (0, 262), (720, 262), (176, 144, 74), 5, cv2.LINE_AA)
    write(flat, "HOJA VERDE", (360, 142), 88, weight=800, colour=CREAM, align="centre")
    write(flat, "FINE LEAF TEAS SINCE 1987", (360, 202), 30, weight=500, colour=(206, 190, 140), align="centre")
    for angle, length, colour in ((-168, 170, (88, 138, 70)), (-118, 190, (64, 118, 62)), (-62, 190, (104, 152, 78)),
                                  (-12, 170, (78, 130, 66))):  # fmt: skip
        leaf(flat, (360, 490), length, angle, colour, (206, 220, 170))
    write(flat, "Organic", (360, 584), 62, weight=300, colour=FOREST, align="centre", face="italic")
    write(flat, "GREEN TEA", (360, 690), 92, weight=800, colour=FOREST, align="centre")
    write(flat, "Sencha · loose leaf", (360, 748), 44, weight=500, align="centre")
    cv2.line(flat, (60, 784), (660, 784), (176, 144, 74), 3, cv2.LINE_AA)
    lines = ("Ingredients: organic green tea", "(Camellia sinensis), Shizuoka.", "Brew 2 g per cup at 75 °C for",
             "two minutes. Store cool, dry.")  # fmt: skip
    paragraph(flat, lines, (48, 838), 29, weight=450)
    write(flat, "Net weight", (48, 1034), 30, weight=400)
    write(flat, "125 g", (48, 1088), 58, weight=800, colour=FOREST)
    code = ean13(ean, module=3, height=84)
    paste(flat, code, (720 - code.shape[1] - 24, 1120 - code.shape[0] - 20))
    return flat


def jasmine_tea(ean: str) -> Print:
    """The front of a Chinese tea carton: 90 x 140 mm."""
    red, gold = (164, 38, 34), (232, 196, 120)
    flat = sheet(720, 1120, (248, 244, 232))
    flat[:820, 410:] = red
    cv2.rectangle(flat, (440, 40), (690, 790), gold, 4, cv2.LINE_AA)
    for index, sign in enumerate("茉莉花茶"):
        write(flat, sign, (565, 190 + index * 172), 150, face="uni", colour=gold, align="centre")
    write(flat, "云岭茶庄", (60, 130), 76, face="uni", colour=red)
    write(flat, "YUNLING TEA HOUSE", (62, 186), 29, weight=600, colour=red)
    for at, angle in (((150, 420), -60), ((170, 430), -120), ((160, 410), 20), ((150, 430), 100), ((165, 420), 170)):
        leaf(flat, at, 120, angle, (250, 250, 246), (226, 214, 150))
        cv2.circle(flat, (160, 422), 18, (238, 204, 96), -1, cv2.LINE_AA)
    leaf(flat, (180, 520), 190, 25, (92, 138, 84), (206, 220, 170))
    leaf(flat, (150, 520), 150, 130, (74, 120, 70), (206, 220, 170))
    lines = ("配料：绿茶、茉莉鲜花", "产地：福建福州", "净含量：100 克", "保质期：24 个月", "冲泡：85 度，3 分钟")
    paragraph(flat, lines, (48, 872), 36, leading=1.5, face="uni")
    code = ean13(ean, module=2, height=86)
    paste(flat, code, (720 - code.shape[1] - 30, 1120 - code.shape[0] - 60))
    return flat


def jam(ean: str) -> Print:
    """A label around a jam jar."""
    flat = sheet(900, 620, (250, 246, 236))
    cv2.rectangle(flat, (24, 22), (876, 598), BERRY, 6, cv2.LINE_AA)
    write(flat, "BEERENHOF", (450, 128), 92, weight=800, colour=BERRY, align="centre")
    for x in (300, 450, 600):
        _strawberry(flat, (x, 226))
    write(flat, "Strawberry Extra Jam", (450, 372), 66, weight=700, align="centre")
    write(flat, "60 g fruit per 100 g", (450, 424), 36, weight=400, align="centre")
    lines = ("Ingredients: strawberries, sugar,", "lemon juice, fruit pectin.", "After opening keep refrigerated.")
    paragraph(flat, lines, (56, 486), 29, weight=450)
    write(flat, "340 g", (560, 570), 54, weight=800, colour=BERRY)
    code = ean13(ean, module=1, height=60)
    paste(flat, code, (740, 500))
    return flat


def _strawberry(flat: Print, at: tuple[int, int]) -> None:
    x, y = at
    outline = [
        (x - 46, y - 30),
        (x - 20, y - 46),
        (x + 20, y - 46),
        (x + 46, y - 30),
        (x + 34, y + 20),
        (x, y + 58),
        (x - 34, y + 20),
    ]
    cv2.fillPoly(flat, [cv2.approxPolyDP(np.array(outline, np.int32), 1, True)], (200, 36, 48), cv2.LINE_AA)
    for row, columns in ((-22, (-24, 0, 24)), (2, (-14, 14)), (26, (0,))):
        for column in columns:
            cv2.ellipse(flat, (x + column, y + row), (3, 6), 0, 0, 360, (246, 214, 120), -1, cv2.LINE_AA)
    for angle in (-150, -110, -70, -30):
        leaf(flat, (x, y - 40), 44, angle, (64, 120, 56), (120, 170, 90))


def honey(ean: str) -> Print:
    """A label around a honey jar."""
    gold = (186, 126, 24)
    flat = sheet(900, 620, (252, 244, 214))
    for column in range(9):
        for row in range(3):
            centre = np.array([column * 112 + (row % 2) * 56, 40 + row * 60])
            comb = centre + 36 * np.stack([np.cos(np.arange(6) * np.pi / 3), np.sin(np.arange(6) * np.pi / 3)], 1)
            cv2.polylines(flat, [np.round(comb * 16).astype(np.int32)], True, (236, 196, 104), 4, cv2.LINE_AA, 4)
    flat[196:300] = gold
    write(flat, "IMKEREI LINDNER", (450, 274), 72, weight=800, colour=(255, 250, 236), align="centre")
    write(flat, "Lime Blossom Honey", (450, 384), 66, weight=700, align="centre")
    write(flat, "raw, from our own hives", (450, 436), 36, align="centre", face="italic")
    write(flat, "500 g", (70, 560), 64, weight=800, colour=gold)
    code = ean13(ean, module=2, height=70)
    paste(flat, code, (900 - code.shape[1] - 40, 600 - code.shape[0]))
    return flat


def candle() -> Print:
    """The front of a candle carton: 80 x 100 mm."""
    flat = sheet(640, 800, (58, 62, 74))
    cv2.rectangle(flat, (36, 36), (604, 764), (214, 196, 160), 3, cv2.LINE_AA)
    write(flat, "NORDLYS", (320, 210), 92, weight=700, colour=(232, 222, 196), align="centre")
    cv2.ellipse(flat, (320, 400), (46, 92), 0, 0, 360, (238, 186, 92), -1, cv2.LINE_AA)
    cv2.ellipse(flat, (320, 430), (22, 48), 0, 0, 360, (252, 236, 180), -1, cv2.LINE_AA)
    write(flat, "soy wax candle", (320, 590), 50, weight=400, colour=(232, 222, 196), align="centre")
    write(flat, "cedar & amber · 220 g", (320, 654), 38, weight=300, colour=(232, 222, 196), align="centre")
    return flat


SOAP_SMALL_PRINT = (16, 630, 664, 848)
"""Pixels x0, y0, x1, y1 of the ingredients on `soap`."""


def soap(ean: str, *, smeared: bool) -> Print:
    """The front of a soap carton, 85 x 110 mm; `smeared` as if a wet thumb had wiped over the ingredients."""
    olive, paper = (96, 104, 52), (238, 234, 220)
    flat = sheet(680, 880, paper)
    flat[:26] = flat[-26:] = olive
    write(flat, "CASA OLIVA", (340, 150), 92, weight=800, colour=olive, align="centre")
    cv2.line(flat, (110, 188), (570, 188), olive, 4, cv2.LINE_AA)
    for angle, at in ((-150, (330, 330)), (-35, (350, 330)), (-95, (340, 330)), (160, (330, 340)), (20, (350, 340))):
        leaf(flat, at, 120, angle, (126, 138, 74), (206, 210, 160))
    for x in (300, 384):
        cv2.ellipse(flat, (x, 372), (22, 30), 14, 0, 360, (78, 86, 40), -1, cv2.LINE_AA)
    write(flat, "Olive Oil Soap", (340, 500), 80, weight=800, align="centre")
    write(flat, "with bay laurel · 150 g", (340, 566), 42, weight=500, align="centre")
    lines = (
        "INGREDIENTS: Sodium Olivate, Aqua, Glycerin,",
        "Laurus Nobilis Fruit Oil, Sodium Chloride.",
        "Handmade, cured for nine months. Keep dry.",
        f"Batch L2611 · use within 36 months · {ean[-6:]}",
    )
    paragraph(flat, lines, (56, 686), 25, leading=1.8, weight=450)
    if smeared:
        _smear(flat, SOAP_SMALL_PRINT)
    return flat


def _smear(flat: Print, box: tuple[int, int, int, int]) -> None:
    """Wet ink that a thumb wiped over: half of it is gone, the rest has run. The lines are seen, the letters are not.

    The strength was tuned until rapidocr finds all four lines at any contrast and is sure of none.
    """
    x0, y0, x1, y1 = box
    print_ = flat[y0:y1, x0:x1].astype(np.float32) / 255
    paper = print_[2, 2]
    ink_flow = soft_noise(print_.shape[:2], (3, 5), rng(77))
    gone = np.clip(0.5 - (ink_flow - np.quantile(ink_flow, 0.65)) * 8, 0, 1)[..., None]
    run = blurred((print_ * (1 - gone) + paper * gone).astype(np.float32), 1.4)
    stroke = np.zeros((7, 13), np.float32)
    cv2.line(stroke, (2, 4), (10, 2), 1.0, 1, cv2.LINE_AA)
    run = cv2.filter2D(run, -1, stroke / stroke.sum())
    wiped = np.zeros(print_.shape[:2], np.float32)
    wiped[8:-8, 20:-20] = 1
    wiped = blurred(wiped, 7)[..., None]
    flat[y0:y1, x0:x1] = np.clip((print_ * (1 - wiped) + run * wiped) * 255, 0, 255).astype(np.uint8)

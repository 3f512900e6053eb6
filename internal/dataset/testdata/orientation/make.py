"""Writes pictures of every orientation and format, and what Pillow shows of them.

Run with the Python of the bench environment. With the argument --show only
prints what Pillow shows of the pictures that are there.

Squares of one colour each, as large as the blocks of JPEG, survive JPEG: what
is compared is where they lie, not how well they are compressed.
"""

import json
import pathlib
import sys

from PIL import Image, ImageOps

FOLDER = pathlib.Path(__file__).parent
COLOURS = [(200, 30, 30), (30, 200, 30), (30, 30, 200), (220, 220, 40), (40, 220, 220), (128, 128, 128)]
SIDE = 16  # of a square, pixels: a block of JPEG with halved colours
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="%d"/></r:RDF></x:xmpmeta>'


def picture(mode="RGB"):
    """Three columns and two rows of squares."""
    img = Image.new("RGB", (3 * SIDE, 2 * SIDE))
    for i, colour in enumerate(COLOURS):
        img.paste(colour, (i % 3 * SIDE, i // 3 * SIDE, (i % 3 + 1) * SIDE, (i // 3 + 1) * SIDE))
    return img.convert(mode)


def exif(orientation, little=False):
    e = Image.Exif()
    e.endian = "<" if little else ">"
    e[0x010F] = "a camera whose name does not fit into the entry"
    e[0x0112] = orientation
    e.get_ifd(0x8769)[0x9003] = "2020:01:01 00:00:00"
    return e


def write():
    def save(name, img, **how):
        img.save(FOLDER / name, **how)

    for o in range(1, 9):
        save(f"{o}.jpg", picture(), quality=95, subsampling=2 if o % 2 else 0, exif=exif(o, little=o > 4))
        save(f"{o}.png", picture(), exif=exif(o, little=o % 2 == 0))
        save(f"{o}.webp", picture(), lossless=True, exif=exif(o))
        save(f"{o}.tiff", picture(), compression="tiff_lzw", exif=exif(o))
    save("gray.jpg", picture("L"), quality=95, exif=exif(6))
    save("alpha.png", picture("RGBA"), exif=exif(5))
    save("palette.png", picture("P"), exif=exif(8))
    save("xmp.jpg", picture(), quality=95, xmp=XMP % 6)
    save("exif-before-xmp.jpg", picture(), quality=95, exif=exif(1), xmp=XMP % 6)
    save("none.jpg", picture(), quality=95)
    save("zero.jpg", picture(), quality=95, exif=exif(0))
    save("nine.jpg", picture(), quality=95, exif=exif(9))


def show():
    """The colour of the middle of each square, row by row."""
    shown = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix not in (".jpg", ".png", ".webp", ".tiff"):
            continue
        img = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        middles = range(SIDE // 2, img.height, SIDE), range(SIDE // 2, img.width, SIDE)
        shown[path.name] = [[list(img.getpixel((x, y))) for x in middles[1]] for y in middles[0]]
    return shown


if __name__ == "__main__":
    if "--show" not in sys.argv:
        write()
        rows = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in show().items()]
        (FOLDER / "expect.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    else:
        json.dump(show(), sys.stdout)

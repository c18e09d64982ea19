"""Build `glyphs.png`: ASCII in 8 x 16 cells, regular above bold.

The atlas is committed, so a picture is the same on every machine whatever FreeType is installed.
Run this only to change the font: `python -m eyespan.demo.glyphs --regular FONT.ttf --bold
FONT.ttf`.
"""

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from eyespan.demo.canvas import ATLAS_PATH, CELL_H, CELL_W, CHARS


def build_atlas(regular: Path, bold: Path, size: int = 13) -> Image.Image:
    """Grey-level atlas, [2 * CELL_H, len(CHARS) * CELL_W]; `size` is in pixels per em."""
    atlas = Image.new("L", (len(CHARS) * CELL_W, 2 * CELL_H), 0)
    draw = ImageDraw.Draw(atlas)
    for row, path in enumerate((regular, bold)):
        font = ImageFont.truetype(str(path), size)
        for column, char in enumerate(CHARS):
            draw.text((column * CELL_W, row * CELL_H + 12), char, fill=255, font=font, anchor="ls")
    return atlas


def main() -> None:
    """Write the atlas into the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regular", type=Path, required=True)
    parser.add_argument("--bold", type=Path, required=True)
    args = parser.parse_args()
    build_atlas(args.regular, args.bold).save(ATLAS_PATH, optimize=True)
    print(f"wrote {ATLAS_PATH}")


if __name__ == "__main__":
    main()

"""Keeps the outputs of a notebook for the repository, and compresses its pictures again, without
loss.

    python experiments/scripts/keep_outputs.py EXECUTED.ipynb KEPT.ipynb

A picture is base64 there, and chance spells the marks of unfinished work in it, so that a search
for these finds pictures instead of code. It packs a PNG in the shortest way that spells none.
"""

import base64
import io
import itertools
import json
import pathlib
import re
import sys
import zlib

from PIL import Image

# In two parts, so that a search does not find this line.
MARKS = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)))
LARGEST_BYTES = 2**20
_STRATEGIES = (
    zlib.Z_DEFAULT_STRATEGY,
    zlib.Z_FILTERED,
    zlib.Z_RLE,
    zlib.Z_HUFFMAN_ONLY,
    zlib.Z_FIXED,
)


def main() -> None:
    executed, kept = map(pathlib.Path, sys.argv[1:])
    notebook = json.loads(executed.read_text())
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop("image/jpeg", None)  # Pillow's images come as a PNG as well
            if "image/png" in data:
                data["image/png"] = packed("".join(data["image/png"]))
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) >= LARGEST_BYTES:
        sys.exit(f"{kept} would have 1 MB or more")
    kept.write_text(text)


def packed(picture: str) -> str:
    """Returns the same pixels as base64 of another PNG; raises ValueError if each spells a mark."""
    pixels = Image.open(io.BytesIO(base64.b64decode(picture)))
    if pixels.mode == "RGBA" and pixels.getchannel("A").getextrema() == (255, 255):
        pixels = pixels.convert("RGB")  # nothing shines through
    found = []
    for level, strategy in itertools.product(range(9, 0, -1), _STRATEGIES):
        file = io.BytesIO()
        pixels.save(file, "PNG", compress_level=level, compress_type=strategy)
        text = base64.b64encode(file.getvalue()).decode()
        if not MARKS.search(text):
            found.append(text)
    if not found:
        raise ValueError("every way to pack this picture spells a mark of unfinished work")
    return min(found, key=len)


if __name__ == "__main__":
    main()

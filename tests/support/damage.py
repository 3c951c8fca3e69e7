"""Damage that a disk may do to a Parquet file: pages that unpack into other numbers."""

from pathlib import Path
from random import Random

import pyarrow.parquet as pq


def damage_silently(path: Path, column: str) -> None:
    """Change bytes in a page of the column, which unpack without an error.

    Incompressible values are stored as they are, so the column has to have `noise`.
    """
    before = pq.read_table(path)[column]
    metadata = pq.ParquetFile(path).metadata
    chunk = metadata.row_group(0).column(metadata.schema.names.index(column))
    content = bytearray(path.read_bytes())
    first = chunk.dictionary_page_offset or chunk.data_page_offset
    middle = first + chunk.total_compressed_size // 2
    for place in range(middle, middle + 40):
        content[place] ^= 0x55
    path.write_bytes(content)
    assert pq.read_table(path)[column] != before


def noise(count: int) -> list[int]:
    """Whole numbers that no compression makes shorter."""
    chance = Random(1)
    return [chance.getrandbits(60) for _ in range(count)]

"""Segments: windows in order of time, without sorting all samples.

The files of a run are in order of time, and Spark reads a split of a file from its beginning. So
the rows of a node in one batch are a few segments of its time: a batch may have several files, in
any order, and files between them may be elsewhere. A segment becomes one row: how often the window
turned, the directions at both ends, and the few samples that may decide how it ended.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FINAL_S: Final = 10.0
"""Seconds at the end of a run, of which the mean is a window's final value."""
GAP_S: Final = 10.0
"""Time without a sample from which on another segment begins, seconds; a file is longer."""
STILL: Final = 1e-9
"""A change of ln W up to this has no direction."""
_FIELDS: Final = {
    "run_id": (pa.string(), "string"),
    "node": (pa.int32(), "int"),
    "from_s": (pa.float64(), "double"),
    "first": (pa.float64(), "double"),
    "last": (pa.float64(), "double"),
    "first_direction": (pa.float64(), "double"),
    "last_direction": (pa.float64(), "double"),
    "turns_count": (pa.int64(), "bigint"),
    "t_s": (pa.list_(pa.float64()), "array<double>"),
    "ln_window": (pa.list_(pa.float64()), "array<double>"),
}
Numbers = np.ndarray[Any, np.dtype[Any]]

# Executors need Python with pyarrow and numpy, but not this package.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def segments(samples: DataFrame) -> DataFrame:
    """Segments of nodes that live and have a window; `first` and `last` are values of ln W.

    Rows are in order of time in each partition, as `reading` returns them. Columns `t_s` and
    `ln_window` have the first sample of a segment, its last ten seconds, and each sample with a
    larger window than all later ones, or a smaller one.
    """
    windows = samples.where(F.col("is_alive") & (F.col("window") > 0)).select(
        "run_id", "node", "t_s", F.ln("window").alias("ln_window")
    )
    schema = ", ".join(f"{name} {type_}" for name, (_, type_) in _FIELDS.items())
    return windows.mapInArrow(_segments, schema)


def _segments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(name, type_) for name, (type_, _) in _FIELDS.items()])
    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_pylist(list(_of_batch(batch)), schema)


def _of_batch(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    runs = batch["run_id"].dictionary_encode()
    nodes = batch["node"].to_numpy()
    place = runs.indices.to_numpy().astype(np.int64) * (int(nodes.max()) + 1) + nodes
    # The smaller the type, the faster the sort.
    order = np.argsort(place.astype(np.min_scalar_type(int(place.max()))), kind="stable")
    place, t_s, window = (
        column[order] for column in (place, batch["t_s"].to_numpy(), batch["ln_window"].to_numpy())
    )
    begins = np.flatnonzero((np.diff(place) != 0) | (np.diff(t_s) < 0) | (np.diff(t_s) > GAP_S)) + 1
    for begin, end in pairwise([0, *begins.tolist(), len(order)]):
        row = int(order[begin])
        found = _segment(t_s[begin:end], window[begin:end])
        yield {"run_id": batch["run_id"][row].as_py(), "node": int(nodes[row]), **found}


def _segment(t_s: Numbers, window: Numbers) -> dict[str, Any]:
    change = np.diff(window)
    direction = np.sign(change[np.abs(change) > STILL])
    back = window[::-1]
    is_extreme = (back[1:] > np.maximum.accumulate(back)[:-1]) | (
        back[1:] < np.minimum.accumulate(back)[:-1]
    )
    is_kept = t_s > t_s[-1] - FINAL_S
    is_kept[:-1] |= is_extreme[::-1]
    is_kept[0] = True
    return {
        "from_s": t_s[0],
        "first": window[0],
        "last": window[-1],
        "first_direction": direction[0] if len(direction) else None,
        "last_direction": direction[-1] if len(direction) else None,
        "turns_count": np.count_nonzero(np.diff(direction)),
        "t_s": t_s[is_kept],
        "ln_window": window[is_kept],
    }

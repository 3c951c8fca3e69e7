"""Session: one Spark session, quiet, on this machine unless told otherwise."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_analysis.java import find_java
from spark_analysis.terminal import JobFailed

LOCAL: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"
_GIB: Final = 2**30


@contextmanager
def spark_session(
    master: str = LOCAL,
    *,
    memory_gib: int | None = None,
    partitions: int = 16,
    log: Path,
    packages: str = "",
) -> Iterator[SparkSession]:
    """Start Spark on `master`, and stop it at the end.

    `memory_gib` is the driver's, which in local mode does all the work: by default a quarter of
    this machine's, 1 to 8. `partitions` is the number of parts that data is shuffled into.
    `packages` are what Spark fetches from Maven, once. Spark's own output goes to the file `log`.
    A session that runs already is used as it is, and goes on. Raises JobFailed.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    os.environ["JAVA_HOME"] = str(find_java().home)
    is_local = master.startswith("local")
    if is_local:
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not the first python3 of PATH
    builder = SparkSession.Builder().master(master).appName("flowguard")
    settings = _settings(is_local, memory_gib or _memory_gib(), partitions)
    if packages:
        settings["spark.jars.packages"] = packages
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _standard_error_to(log):
            spark = builder.getOrCreate()
    except (PySparkException, RuntimeError) as failure:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        raise JobFailed(f"Spark did not start on {master}: {failure}\n{said}") from failure
    try:
        yield spark
    finally:
        spark.stop()


def _settings(is_local: bool, memory_gib: int, partitions: int) -> dict[str, str]:
    settings = {
        "spark.driver.memory": f"{memory_gib}g",
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A file that cannot be read ends the job: nothing is left out without a word.
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.sql.files.ignoreMissingFiles": "false",
        "spark.sql.parquet.mergeSchema": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "262144",
    }
    if is_local:
        # To look at a file takes less than to make a task that does.
        settings["spark.sql.sources.parallelPartitionDiscovery.threshold"] = "100000"
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return settings


def _memory_gib() -> int:
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(of_machine // (4 * _GIB), 1), 8)


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """Redirect the standard error of programs started meanwhile to `log`, for as long as they
    live."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(target)

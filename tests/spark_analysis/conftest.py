import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_analysis.analysis import Analysis, analyse
from spark_analysis.java import find_java
from spark_analysis.runs.examination import examine, find_runs
from spark_analysis.session import spark_session
from spark_analysis.terminal import JobFailed
from tests.spark_analysis.crowd import draw_few
from tests.support.kafka import PEERS

# Compiling plans, and compiling what that gives, takes longer than these jobs do; so does sweeping
# a cache of code that is too small for them, and collecting what a small nursery is too small for.
SHORT_JOBS = (
    '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
    ' -XX:ReservedCodeCacheSize=256m -Xmn400m"'
    " --conf spark.sql.codegen.wholeStage=false"
    " --conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell"
)


# How Spark reads Kafka, where `make kafka` has fetched it.
KAFKA_JARS = sorted(PEERS.glob("spark-kafka/*.jar"))
JARS = f"--jars {','.join(map(str, KAFKA_JARS))} " if KAFKA_JARS else ""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: starting Spark takes seconds."""
    try:
        find_java()
    except JobFailed as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", JARS + SHORT_JOBS)
        with spark_session("local[2]", memory_gib=1, partitions=2, log=log) as started:
            yield started


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crowd under three parameter sets, and a small map of loads and triggers."""
    return draw_few(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="session")
def analysis(spark: SparkSession, crowd: Path) -> Analysis:
    """The analysis of the crowd; it takes seconds, too."""
    return analyse(spark, *examine(find_runs([crowd])))

"""From which load on does a disturbance outlive its cause?"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MAP_KEY: Final = ("scenario", "policy", "load_ratio", "trigger_s")


def region(recovered: DataFrame, runs: DataFrame) -> DataFrame:
    """The map load x length of the trigger, from `recovery`: how many runs came back.

    One row per scenario, policy, load and length; runs without a load or an end of the trigger have
    no place on the map.
    """
    places = runs.select("run_id", "scenario", "policy", "load_ratio")
    on_map = recovered.join(places, "run_id").where(
        F.col("load_ratio").isNotNull() & F.col("trigger_s").isNotNull()
    )
    return (
        on_map.withColumn("load_ratio", F.round("load_ratio", 6))
        .withColumn("trigger_s", F.round("trigger_s", 6))
        .groupBy(*MAP_KEY)
        .agg(
            F.count("*").alias("runs_count"),
            F.count(F.when(F.col("is_recovered"), 1)).alias("recovered_count"),
            F.avg(F.col("is_recovered").cast("double")).alias("recovered_ratio"),
            F.max("recovery_s").alias("recovery_max_s"),
        )
    )

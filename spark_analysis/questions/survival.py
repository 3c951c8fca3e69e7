"""Does every process live?"""

from typing import Final

from pyspark.sql import DataFrame

from spark_analysis.questions.question import Better, Metric, Question, Unit


def survival(runs: DataFrame) -> DataFrame:
    """Return one row per run: processes that died of memory, without those that the scenario
    kills."""
    return runs.select("run_id", "deaths_count")


QUESTION: Final = Question(
    "survival",
    "Does every process live?",
    "Processes that died of memory. Processes that the scenario itself kills do not count: if it "
    "kills one of N, no other may die.",
    (Metric("deaths_count", "processes that died of memory", Unit.COUNT, Better.LESS),),
    lambda inputs: survival(inputs.runs),
)

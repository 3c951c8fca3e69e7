"""Does every process live?"""

from typing import Final

from pyspark.sql import DataFrame

from spark_analysis.questions.question import Better, Metric, Question, Unit


def survival(runs: DataFrame) -> DataFrame:
    """One row per run: processes that died of memory; who is killed by the scenario is in none."""
    return runs.select("run_id", "deaths_count")


QUESTION: Final = Question(
    "survival",
    "Does every process live?",
    "Processes that died of memory. A process that the scenario itself kills has not: where one of "
    "N is killed, nobody else may die.",
    (Metric("deaths_count", "processes that died of memory", Unit.COUNT, Better.LESS),),
    lambda inputs: survival(inputs.runs),
)

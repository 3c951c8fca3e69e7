import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_listens_on_loopback_only_and_shows_no_page(spark: SparkSession) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_a_file_that_cannot_be_read_is_an_error_and_not_left_out(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.files.ignoreCorruptFiles") == "false"
    assert spark.conf.get("spark.sql.files.ignoreMissingFiles") == "false"

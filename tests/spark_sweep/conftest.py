from tests.spark_analysis.conftest import spark

__all__ = ["spark"]

"""With the wheels in a zip file, as on a cluster, Spark finds the source by its name, on the driver and the workers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from sandq.testing import Broker
from tests.support.paths import ROOT
from tests.support.spark.session_helpers import fill

PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()

def where(rows):
    import pyspark_sandq, sandq
    return [sandq.__file__, pyspark_sandq.__file__]

print("FILES", *spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect())
frame = spark.read.format("sandq").option("sandq.bootstrap.servers", sys.argv[1]).option("subscribe", "t").load()
print("ROWS", frame.count())
"""


def test_spark_submit_with_the_wheels(node: Broker, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    # Spark puts .zip files on the path, but no .whl files. All parts of the package sandq must be in the same file.
    package = tmp_path / "sandq.zip"
    for project in (".", "packaging/client"):
        subprocess.run(build, cwd=ROOT / project, check=True, capture_output=True)
    with zipfile.ZipFile(package, "w") as whole:
        for wheel in map(zipfile.ZipFile, tmp_path.glob("*.whl")):
            for name in wheel.namelist():
                whole.writestr(name, wheel.read(name))
    names = zipfile.ZipFile(package).namelist()
    assert {"pyspark_sandq/__init__.py", "sandq/spark/datasource.py", "sandctl/pipeline/__init__.py"} <= {*names}
    node.create_topic("t")
    fill(node, "t", range(100))
    node.advance("1m")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
    conf = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", f"spark.local.dir={tmp_path}"]
    done = subprocess.run(
        [*submit, *(part for one in conf for part in ("--conf", one)), "--py-files", package, program, node.address],
        env={"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable, "HOME": str(tmp_path)}
        | {"JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    files = next(line for line in done.stdout.splitlines() if line.startswith("FILES")).split()[1:]
    assert all(package.name in file for file in files), files
    assert "ROWS 100" in done.stdout

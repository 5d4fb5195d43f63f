"""The page of the small run, which several tests look at."""

import subprocess
import sys

import pytest


@pytest.fixture(scope="package")
def page_path(small_run, tmp_path_factory):
    """The page of a run, written in a process that shows that TensorFlow is not needed."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    code = (
        "import sys; from lottery import report; report.write(sys.argv[1:2], sys.argv[2]);"
        "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, small_run.path, path], check=True)
    return path

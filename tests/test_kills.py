import pytest

from tests.kill_and_resume import kill_and_resume


def test_three_kills_change_no_bit(tmp_path):
    assert kill_and_resume(3, seed=5, folder=tmp_path) == 0


@pytest.mark.long
def test_twenty_kills_change_no_bit(tmp_path):
    assert kill_and_resume(20, seed=11, folder=tmp_path) == 0

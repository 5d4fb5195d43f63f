import pytest

from tests.scripts.kill_and_resume import has_ray, kill_and_resume


def test_two_kills_change_no_bit(tmp_path):
    done = kill_and_resume(2, seed=5, folder=tmp_path, kinds=("tree", "worker"))
    assert not done.wrong and done.in_mid_round >= 1


@pytest.mark.long
def test_twenty_kills_change_no_bit(tmp_path):
    done = kill_and_resume(21, seed=11, folder=tmp_path)
    assert not done.wrong and done.in_mid_round >= 12


@pytest.mark.long
def test_kills_of_ray_workers_change_no_bit(tmp_path):
    if not has_ray():
        pytest.skip("needs `lottery run --on ray`")
    assert not kill_and_resume(5, seed=17, folder=tmp_path, kinds=("ray",)).wrong

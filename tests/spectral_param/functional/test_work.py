from spectral_param.functional.work import is_less_work, is_low_rank
from spectral_param.sizes import Sizes


def test_few_reflectors_are_of_low_rank():
    assert is_low_rank(Sizes(8, 8, 4, 1))
    assert not is_low_rank(Sizes(8, 8, 5, 1))
    assert not is_low_rank(Sizes(8, 8, 4, 0))


def test_the_count_of_operations():
    assert is_less_work(Sizes(2048, 2048, 16, 16), 1_000_000)
    assert is_less_work(Sizes(512, 512, 512, 512), 512)
    assert not is_less_work(Sizes(512, 512, 512, 512), 1024)

from tests.gateway.fakes import X


def test_x() -> None:
    assert X == 1

from tests.algorithms_test import *  # noqa

"""Stands in for PyTorch: shapes and types without numbers, so that the peers' scripts run where there is none."""
import math

__version__ = "0.fake"
uint8, int64, float32, bfloat16, bool = "uint8", "int64", "float32", "bfloat16", "bool"


class Tensor:
    def __init__(self, shape, dtype, device="cpu"):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device

    def reshape(self, shape):
        assert math.prod(shape) == math.prod(self.shape), (shape, self.shape)
        return Tensor(shape, self.dtype, self.device)

    def to(self, what):
        known = what in (uint8, int64, float32, bfloat16, bool)
        return Tensor(self.shape, what if known else self.dtype, self.device if known else what)

    def numel(self):
        return math.prod(self.shape)

    def normal_(self, mean, deviation):
        assert mean == 0 and deviation > 0
        self.filled = True

    def __truediv__(self, number):
        return self

    def __sub__(self, number):
        return self


class Generator:
    def manual_seed(self, seed):
        return self


class cuda:
    @staticmethod
    def is_available():
        return False


def manual_seed(seed):
    pass


def shape_of(values):
    return (len(values), *shape_of(values[0])) if isinstance(values, list) else ()


def tensor(values, dtype):
    return Tensor(shape_of(values), dtype)


def frombuffer(buffer, dtype):
    return Tensor((len(buffer),), dtype)


def ones(*shape, dtype, device):
    return Tensor(shape, dtype, device)


def randn(*shape, generator):
    return Tensor(shape, float32)


def cat(parts):
    return Tensor((sum(p.shape[0] for p in parts), *parts[0].shape[1:]), parts[0].dtype, parts[0].device)

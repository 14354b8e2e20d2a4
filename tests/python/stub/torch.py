"""The few names of torch that the plug-in uses, over numpy: for tests where torch is not installed."""

import contextlib

import numpy as np

uint8, float32 = np.dtype(np.uint8), np.dtype(np.float32)


class Tensor(np.ndarray):
    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.view(np.ndarray)

    def clamp(self, low, high):
        return np.clip(self, low, high)

    def to(self, kind):
        return self.astype(kind) if isinstance(kind, np.dtype) else self

    def transpose(self, a, b):
        return np.swapaxes(self, a, b)


def from_numpy(array):
    return array.view(Tensor)


class no_grad(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

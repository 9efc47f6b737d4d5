"""Linear recurrences along an axis and their adjoints, from zero or closed on a ring, vectorised over the rest."""

import math
from typing import NamedTuple

import torch

from geomano_hpc.kernels.reference import first_counts_more

_LONG = 256  # an axis longer than this is cut into chunks that advance together


def recurrence(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t]. A long axis is cut into chunks: they advance together from zero, then each adds what
    its product of a lets through of the state before it. About 2 sqrt(length) steps instead of length."""
    length = a.shape[axis]
    if length <= _LONG:
        h = b.clone()
        for t in range(1, length):
            h.select(axis, t).addcmul_(a.select(axis, t), h.select(axis, t - 1))
        return h
    steps = math.isqrt(length - 1) + 1
    chunks = -(-length // steps)
    a, h = (_cut(t, axis, chunks, steps, fill) for t, fill in ((a, 1.0), (b, 0.0)))
    through = a.clone()
    for t in range(1, steps):
        h.select(axis + 1, t).addcmul_(a.select(axis + 1, t), h.select(axis + 1, t - 1))
        through.select(axis + 1, t).mul_(through.select(axis + 1, t - 1))
    for chunk in range(1, chunks):
        state = h.select(axis, chunk - 1).select(axis, steps - 1).unsqueeze(axis)
        h.select(axis, chunk).addcmul_(through.select(axis, chunk), state)
    return h.flatten(axis, axis + 1).narrow(axis, 0, length)


class Recurrence(NamedTuple):
    """h[t] = a[t] h[t-1] + b[t] along an axis, from zero; or on a ring, the state before the first is the last."""

    a: torch.Tensor
    axis: int
    exponent: torch.Tensor | None = None  # on a ring, a = exp(exponent)
    own: float = 0.0  # what a step counts more for itself, and the first for those after it: ScanSettings.own_of

    def states(self, b: torch.Tensor) -> torch.Tensor:
        """On a ring, where h from zero ends at e, it begins with e / (1 - p), p the product of a; by expm1, since p may
        be near 1."""
        h = recurrence(self.a, b, self.axis)
        if self.exponent is None:
            return h
        last = h.narrow(self.axis, h.shape[self.axis] - 1, 1)
        start = last / -torch.expm1(self.exponent.sum(self.axis, keepdim=True))
        return h.addcmul_(self.exponent.cumsum(self.axis).exp_(), start)

    def adjoints(self, b: torch.Tensor) -> torch.Tensor:
        """lambda[t] = b[t] + a[t+1] lambda[t+1]: the same recurrence, backwards and with a one step later. On a ring
        the first follows the last; else there is a zero beyond the last, and what a it meets does not count."""
        exponent = None if self.exponent is None else self._later(self.exponent)
        later = Recurrence(self._later(self.a), self.axis, exponent)
        return later.states(b.flip(self.axis)).flip(self.axis)

    def states_and_read(self, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of the recurrence, and what is read of them: with what a step counts more for itself."""
        states = self.states(self._entering(b))
        return states, states.add(b, alpha=self.own) if self.own else states

    def adjoints_of_read(self, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The adjoints of the states, and those of b."""
        adjoints = self.adjoints(d)
        return adjoints, self._entering(adjoints).add(d, alpha=self.own) if self.own else adjoints

    def _entering(self, b: torch.Tensor) -> torch.Tensor:
        return b if self.exponent is not None else first_counts_more(b, self.own, self.axis)

    def before(self, states: torch.Tensor) -> torch.Tensor:
        """The states one step earlier."""
        earlier = states.roll(1, self.axis)
        if self.exponent is None:
            earlier.narrow(self.axis, 0, 1).zero_()
        return earlier

    def _later(self, a: torch.Tensor) -> torch.Tensor:
        return a.roll(-1, self.axis).flip(self.axis)


def held_slope(z: torch.Tensor) -> torch.Tensor:
    """phi'(z) of phi(z) = (exp(z) - 1) / z; a series where the quotient would lose its digits."""
    far = torch.where(z.abs() < 0.5, 1.0, z)
    series = torch.zeros_like(z)
    for n in range(13, -1, -1):  # z^n / (n! (n + 2))
        series = series * z + 1.0 / (math.factorial(n) * (n + 2))
    return torch.where(z.abs() < 0.5, series, (torch.exp(far) - torch.expm1(far) / far) / far)


def _cut(tensor: torch.Tensor, axis: int, chunks: int, steps: int, fill: float) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[axis] = chunks * steps
    whole = tensor.new_full(shape, fill)
    whole.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return whole.unflatten(axis, (chunks, steps))

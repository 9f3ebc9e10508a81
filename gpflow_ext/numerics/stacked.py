"""Many copies of a GPflow model's parameters at once: kernels and expectations with a leading axis [C].

Chains of a sampler and stored draws are both stacks: a tensor [C, *shape] for each parameter that varies.
GPflow's kernels do not take batched parameters (their distances come from a ``tensordot``), so isotropic
stationary kernels and their sums and products are evaluated here, all others by ``tf.vectorized_map``.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.kernels import Constant, IsotropicStationary, Kernel, Product, Sum, White

from gpflow_ext.numerics import batched, centred
from gpflow_ext.numerics.mapped import mapped, one_by_one

_INHERITED = "__call__", "K", "K_diag", "scale", "scaled_squared_euclid_dist", "slice"
ELEMENTS = 2**25  # of matrices held at a time where many rows are predicted, 256 MiB


class Stack:
    """Constrained values [C, *shape] of some parameters; all others keep their own value."""

    def __init__(self, values: Iterable[tuple[gpflow.Parameter, tf.Tensor]]) -> None:
        self.values = list(values)  # pairs: the equality of parameters is elementwise, they are no keys
        self._known = {id(parameter): value for parameter, value in self.values}

    def __contains__(self, parameter: gpflow.Parameter) -> bool:
        return id(parameter) in self._known

    def __getitem__(self, parameter: gpflow.Parameter) -> tf.Tensor:
        """Return the values [C, *shape], or where the parameter is not stacked its own [1, *shape]."""
        if id(parameter) in self._known:
            return self._known[id(parameter)]
        return tf.convert_to_tensor(parameter)[None]

    def members(self, some: slice) -> Stack:
        """Return some of the members."""
        return Stack((parameter, value[some]) for parameter, value in self.values)

    def replaced(self, parameter: gpflow.Parameter, value: tf.Tensor) -> Stack:
        """Return the stack with another value of one of its parameters."""
        return Stack((p, value if p is parameter else own) for p, own in self.values)

    def within(self, module: Any) -> Stack:
        """Return the part that belongs to the parameters of a module."""
        held = gpflow.utilities.parameter_dict(module).values() if isinstance(module, tf.Module) else ()
        return Stack((parameter, self[parameter]) for parameter in held if parameter in self)


class Frozen(gpflow.Parameter):
    """A frozen parameter: it has no variable, and other values can be substituted for it.

    Parameters
    ----------
    parameter
        The parameter.
    value
        Its constrained value.
    """

    def __init__(self, parameter: gpflow.Parameter, value: tf.Tensor) -> None:
        super().__init__(value, transform=parameter.transform, trainable=False)
        object.__setattr__(self, "_pretransformed_input", tf.convert_to_tensor(self._pretransformed_input))

    @property
    def trainable(self) -> bool:
        """A constant is not."""
        return False


def substituted(
    values: Iterable[tuple[gpflow.Parameter, tf.Tensor]],
) -> contextlib.AbstractContextManager[None]:
    """Let parameters have other constrained values while a graph is traced; see `with_raw`."""
    pairs = list(values)
    return with_raw([parameter for parameter, _ in pairs], [_inverse(*pair) for pair in pairs])


@contextlib.contextmanager
def with_raw(parameters: Sequence[gpflow.Parameter], values: Sequence[tf.Tensor]) -> Iterator[None]:
    """Let parameters have other unconstrained values while a graph is traced; no variable is assigned.

    Not safe if several threads trace the same model.
    """
    own = [parameter._pretransformed_input for parameter in parameters]
    try:
        for parameter, value in zip(parameters, values, strict=True):
            object.__setattr__(parameter, "_pretransformed_input", value)
        yield
    finally:
        for parameter, before in zip(parameters, own, strict=True):
            object.__setattr__(parameter, "_pretransformed_input", before)


def _inverse(parameter: gpflow.Parameter, value: tf.Tensor) -> tf.Tensor:
    return value if parameter.transform is None else parameter.transform.inverse(value)


def each(function: Callable[..., Any], stack: Stack, *tensors: tf.Tensor, in_turn: bool = False) -> Any:
    """Return function(*tensors[c]) for each member of a stack, [C, ...].

    Parameters
    ----------
    function
        Reads the stacked parameters as usual. Its derivatives are those in these, in its arguments and in
        variables; other tensors that it reads are taken for constants.
    stack
        At least one parameter.
    tensors
        [C, ...], of which it takes slices.
    in_turn
        One member after the other, where each has much to compute; it then returns one tensor.
    """
    parameters = [parameter for parameter, _ in stack.values]
    count = len(parameters)

    def within(*arguments: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        return substituted(zip(parameters, arguments[:count], strict=True))

    arguments = [*(value for _, value in stack.values), *tensors]
    return mapped(lambda *slices: function(*slices[count:]), arguments, within=within, in_turn=in_turn)


def each_with_slopes(function: Callable[[], tf.Tensor], stack: Stack) -> tf.Tensor:
    """Return function() [] for each member of a stack, one after the other, [C].

    Differentiable once, in the stacked values alone: the slopes are found beside the value, in one evaluation
    of what has loops of its own.

    Parameters
    ----------
    function
        Reads the stacked parameters as usual.
    stack
        At least one parameter.
    """
    parameters, values = zip(*stack.values, strict=True)

    def one(own: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        with tf.GradientTape() as tape:
            tape.watch(own)
            with substituted(zip(parameters, own, strict=True)):
                value = function()
                slopes = tape.gradient(value, own, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return value, tuple(map(tf.convert_to_tensor, slopes))

    dtypes = tuple(value.dtype for value in values)
    found, slopes = one_by_one(one, values, fn_output_signature=(dtypes[0], dtypes))
    total = tf.stop_gradient(found)
    for value, slope in zip(values, slopes, strict=True):
        moving = tf.stop_gradient(slope) * (value - tf.stop_gradient(value))  # zero, with a gradient
        total += tf.reduce_sum(moving, axis=list(range(1, value.shape.rank)))
    return total


def each_of(function: Callable[[], tf.Tensor], own: Stack) -> tf.Tensor:
    """Return function() for each member of a stack, [C, ...], or [1, ...] where nothing is stacked."""
    return each(function, own) if own.values else function()[None]


def beside(parts: list[tf.Tensor], axis: int) -> tf.Tensor:
    """Stack parts [C or 1, ...] along another axis than the first, for as many members as any of them has."""
    several = next((batched.sizes(part)[0] for part in parts if part.shape[0] != 1), 1)
    return tf.stack([tf.broadcast_to(part, [several, *batched.sizes(part)[1:]]) for part in parts], axis)


def gram(kernel: Kernel, stack: Stack, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
    """Return k(X, X2) for each member, [C, N, N2], or [1, N, N2] where no parameter of it is stacked.

    Without X2 the inputs may have batch axes, [batch..., N, D]: it broadcasts with [C, batch..., N, N].
    """
    own = stack.within(kernel)
    if not own.values:
        return centred.covariance(kernel, X, X2)[None]
    if type(kernel) in (Sum, Product):
        combine = operator.add if type(kernel) is Sum else operator.mul
        return functools.reduce(combine, [gram(part, stack, X, X2) for part in kernel.kernels])
    if type(kernel) is White and X2 is not None:
        return tf.zeros([1, tf.shape(X)[0], tf.shape(X2)[0]], X.dtype)
    if type(kernel) is White:
        return _beside(stack[kernel.variance], X) * tf.eye(tf.shape(X)[-2], dtype=X.dtype)
    if type(kernel) is Constant:
        columns = tf.shape(X if X2 is None else X2)[-2]
        return _beside(stack[kernel.variance], X) * tf.ones([tf.shape(X)[-2], columns], X.dtype)
    if _of_distances(kernel, own):
        return _isotropic(kernel, own, *kernel.slice(X, X2))
    return each(lambda: kernel(X, X2), own)


def variances(kernel: Kernel, stack: Stack, X: tf.Tensor) -> tf.Tensor:
    """Return k(xₙ, xₙ) for each member, [C, N], or [1, N] where no parameter of it is stacked."""
    own = stack.within(kernel)
    if not own.values:
        return kernel(X, full_cov=False)[None]
    if type(kernel) in (Sum, Product):
        combine = operator.add if type(kernel) is Sum else operator.mul
        return functools.reduce(combine, [variances(part, stack, X) for part in kernel.kernels])
    if type(kernel) in (White, Constant) or _of_distances(kernel, own):
        return stack[kernel.variance][:, None] * tf.ones([tf.shape(X)[0]], X.dtype)
    return each(lambda: kernel(X, full_cov=False), own)


def _of_distances(kernel: Kernel, own: Stack) -> bool:
    """Tell whether `_isotropic` evaluates a kernel, which has a function of scaled distances of its own.

    All else must be GPflow's: a kernel of a user may also scale its inputs in another way, replace its
    diagonal, or hold vectors or other kernels.
    """
    if not isinstance(kernel, IsotropicStationary):
        return False
    if any(getattr(type(kernel), name) is not getattr(IsotropicStationary, name) for name in _INHERITED):
        return False
    held = [part for part in vars(kernel).values() if isinstance(part, gpflow.Parameter)]
    broadcast = all(part is kernel.lengthscales or part.shape.rank == 0 for part in held)
    return broadcast and all(any(parameter is part for part in held) for parameter, _ in own.values)


def _isotropic(kernel: IsotropicStationary, own: Stack, X: tf.Tensor, X2: tf.Tensor | None) -> tf.Tensor:
    """Return a function of the scaled distances; all parameters but the length scales broadcast."""
    lengths = own[kernel.lengthscales]
    if lengths.shape.rank == 1:  # one for all dimensions: the distances are the same for all members
        squared = _squared_distances(X, X if X2 is None else X2)[None] / _beside(lengths, X) ** 2
    else:
        scaled = X / _beside(lengths, X)
        squared = _squared_distances(scaled, scaled if X2 is None else X2 / _beside(lengths, X2))
    if kernel.lengthscales not in own:
        squared = tf.repeat(squared, tf.shape(own.values[0][1])[0], axis=0)
    with _broadcasting(kernel, own, X):
        return kernel.K_r2(squared)


@contextlib.contextmanager
def _broadcasting(kernel: Kernel, own: Stack, X: tf.Tensor) -> Iterator[None]:
    """Put tensors [C, 1, …, 1] where the kernel's scalar parameters are, while a graph is traced."""
    names = [name for name, part in vars(kernel).items() if isinstance(part, gpflow.Parameter)]
    before = {name: vars(kernel)[name] for name in names if name != "lengthscales"}
    try:
        for name, parameter in before.items():
            object.__setattr__(kernel, name, _beside(own[parameter], X))
        yield
    finally:
        for name, parameter in before.items():
            object.__setattr__(kernel, name, parameter)


def _beside(values: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Return values [C] or [C, D] with axes of length one after C, to broadcast with X [..., N, D]."""
    ones = [1] * (len(X.shape) - values.shape.rank + 1)
    return tf.reshape(values, [tf.shape(values)[0], *ones, *values.shape[1:]])


def _squared_distances(X: tf.Tensor, X2: tf.Tensor) -> tf.Tensor:
    """Return |x − x'|² of [..., N, D] and [..., N2, D], [..., N, N2], not negative."""
    if X.shape[-1] == 1:
        return tf.square(X - tf.linalg.matrix_transpose(X2))
    mean = tf.stop_gradient(tf.reduce_mean(X, axis=-2, keepdims=True))
    X, X2 = X - mean, X2 - mean  # of which the squares keep more digits
    squares, squares2 = (tf.reduce_sum(part**2, axis=-1) for part in (X, X2))
    cross = tf.matmul(X, X2, transpose_b=True)
    return tf.nn.relu(tf.expand_dims(squares, -1) + tf.expand_dims(squares2, -2) - 2.0 * cross)


def mean(function: gpflow.functions.MeanFunction, stack: Stack, X: tf.Tensor) -> tf.Tensor:
    """Return μ(X) for each member, [C, N, P], or [1, N, P] where no parameter of it is stacked."""
    return each_of(lambda: function(X), stack.within(function))


def slices(count: int, size: int) -> list[slice]:
    """Return slices of at most ``size`` that cover ``count``; an empty one where there is nothing."""
    return [slice(begin, begin + size) for begin in range(0, max(count, 1), size)]


def pieces(X: tf.Tensor, width: int) -> list[tf.Tensor]:
    """Return inputs [N, D] by as many rows as hold `ELEMENTS`, ``width`` each; whole where N is unknown."""
    N, size = X.shape[0], max(ELEMENTS // width, 1)
    return [X] if N is None or size >= N else [X[some] for some in slices(N, size)]


def per_datum(
    function: Callable[..., Any],
    likelihood: gpflow.likelihoods.Likelihood,
    stack: Stack,
    X: tf.Tensor,
    mean: tf.Tensor,
    var: tf.Tensor,
    *targets: tf.Tensor,
    in_turn: bool = False,
) -> Any:
    """Return function(X, mean, var, *targets) of a likelihood for each member, [C, N, ...].

    Parameters
    ----------
    function
        A method of ``likelihood`` that treats the rows alone, such as ``variational_expectations``.
    likelihood
        Its owner. Where it has stacked parameters the members are mapped over, else their rows are joined.
    X
        Inputs [N, D], the same for all.
    mean, var
        Moments of f, each [C, N, P].
    targets
        [N, Q], the same for all.
    in_turn
        See `each`.
    """
    own = stack.within(likelihood)
    if own.values:
        return each(lambda m, v: function(X, m, v, *targets), own, mean, var, in_turn=in_turn)
    count, rows = tf.shape(mean)[0], tf.shape(mean)[1]
    flat = [tf.reshape(part, [-1, part.shape[-1]]) for part in (mean, var)]
    shared = [tf.tile(part, [count, 1]) for part in (X, *targets)]
    results = function(shared[0], *flat, *shared[1:])
    return tf.nest.map_structure(
        lambda part: tf.reshape(part, tf.concat([[count, rows], tf.shape(part)[1:]], axis=0)), results
    )

"""A function of each member of a batch, with the derivatives that the function has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from gpflow_ext.numerics.devices import graphs_for_xla

Within = Callable[..., contextlib.AbstractContextManager[None]]


def one_by_one(function: Callable[..., Any], values: Any, **options: Any) -> Any:
    """Return what ``tf.map_fn`` does, a function of each member of ``values``, without AutoGraph.

    Outside a graph that would convert the function and all that it calls: for seconds the first time, and for
    most of the time of each later call.
    """
    return tf.map_fn(tf.autograph.experimental.do_not_convert(function), values, **options)


def mapped(
    function: Callable[..., Any],
    arguments: Sequence[tf.Tensor],
    *,
    within: Within = contextlib.nullcontext,
    in_turn: bool = False,
) -> Any:
    """Return function(*(a[c] for a in arguments)) for each c, with derivatives of every order.

    These are in the arguments and variables; other tensors that the function reads are taken for constants.
    They are mapped as the function is: those of ``tf.vectorized_map`` do not know of custom gradients, but
    take them for identities, and for constant what such a function holds.

    Parameters
    ----------
    function
        Returns tensors, or one tensor where it is called in turn.
    arguments
        Tensors [C, ...] of one dtype.
    within
        Of the same slices, the context in which the function and its derivatives are evaluated.
    in_turn
        One member after the other, where each has much to compute.
    """

    def one(*slices: tf.Tensor) -> Any:
        with within(*slices):
            return function(*slices)

    by = _in_turn if in_turn else _at_once
    return _with_slopes(one, arguments, arguments[0].dtype, by, within)


def _with_slopes(
    function: Callable[..., Any],
    arguments: Sequence[tf.Tensor],
    dtypes: Any,
    by: Callable[..., Any],
    within: Within,
) -> Any:
    count = len(arguments)

    @tf.custom_gradient
    def all_of(*arguments: tf.Tensor) -> Any:
        def grad(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            def slopes(*given: tf.Tensor) -> list[tf.Tensor]:
                own, above = given[:count], given[count:]
                with tf.GradientTape() as tape:
                    tape.watch(own)
                    with within(*own):
                        value = tf.nest.flatten(function(*own))
                        found = tape.gradient(value, [*own, *variables], above, unconnected_gradients="zero")
                return [tf.convert_to_tensor(slope) for slope in found]

            dtypes = [part.dtype for part in (*arguments, *variables)]
            again = [*arguments, *upstream]
            found = _with_slopes(slopes, again, dtypes, by, lambda *given: within(*given[:count]))
            own, others = found[:count], found[count:]
            return (own, [tf.reduce_sum(slope, axis=0) for slope in others]) if variables else own

        return by(function, arguments, dtypes), grad

    return all_of(*arguments)


def _at_once(function: Callable[..., Any], arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
    with _inline():
        return tf.vectorized_map(lambda slices: function(*slices), list(arguments))


def _in_turn(function: Callable[..., Any], arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
    return one_by_one(
        lambda slices: function(*slices),
        list(arguments),
        fn_output_signature=dtypes,
        parallel_iterations=1,
    )


@contextlib.contextmanager
def _inline() -> Iterator[None]:
    """Within, let ``tf.vectorized_map`` write into the graph at hand where XLA is to compile that.

    By itself it makes a function there, whose gradient takes axes and shapes from its results. XLA has to
    know these, and therefore takes all arguments of the function for constants: it would compile anew for
    each of their values.
    """
    found = graphs_for_xla()
    try:
        for graph, _ in found:
            graph._set_control_flow_context(None)
        yield
    finally:
        for graph, context in found:
            graph._set_control_flow_context(context)

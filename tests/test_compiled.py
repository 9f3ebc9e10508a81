"""Compiled once for a structure: shared between models, threads and sizes, and nothing kept of any model."""

from __future__ import annotations

import gc
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from marks import every_pair
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

import gpflow_ext as gpx
from gpflow_ext.compiled import Compiled, functions, gradients, trace_count
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPTaylor, SiteModel
from gpflow_ext.training.site_iteration import optimises

SE = gpflow.kernels.SquaredExponential


@pytest.fixture
def cold() -> Iterator[None]:
    """Begin and end with nothing compiled."""
    gpx.clear_compiled()
    yield
    gpx.clear_compiled()


def _model(
    model_class: type[SiteModel] = GPLaplace,
    num_data: int = 20,
    seed: int = 0,
    kernel: gpflow.kernels.Kernel | None = None,
    variance: float = 2.0,
    **options: object,
) -> SiteModel:
    X, Y = problems.binary(num_data, seed=seed)
    likelihood = BernoulliLogit(bound="jaakkola" if model_class is GPJaakkola else "piecewise")
    return model_class((X, Y), kernel or SE(variance=variance), likelihood, **options)


def _values(model: SiteModel) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.variables]


def _assert_equal(model: SiteModel, other: SiteModel) -> None:
    for mine, its in zip(_values(model), _values(other), strict=True):
        np.testing.assert_array_equal(mine, its)


def _live_graphs() -> int:
    gc.collect()
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


class Raised(SE):
    """A kernel of a user's, which reads a static number of rows where it is asked to."""

    static, broken = False, False

    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        if self.broken:
            raise RuntimeError("a kernel that raises")
        K = super().K(X, X2)
        return K + tf.constant(0.1 * np.eye(X.shape[0])) if self.static and X2 is None else K

    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        return super().K_diag(X) + (0.1 if self.static else 0.0)


# ------------------------------------------------------------------------------------------- one structure


@pytest.mark.parametrize(
    ("model_class", "learn", "inducing"),
    every_pair([VGPKMM, GPLaplace, GPTaylor, GPJaakkola], [False, True], [False, True]),
)
def test_a_structure_is_traced_once_whatever_the_values_and_the_rows(
    model_class: type[SiteModel], learn: bool, inducing: bool
) -> None:
    counts = []
    for place, num_data in enumerate((20, 31, 14)):
        Z = np.random.default_rng(place).uniform(-2.0, 2.0, (5, 2)) if inducing else None
        model = _model(model_class, num_data, place, variance=1.0 + place, inducing_variable=Z)
        gpflow.set_trainable(model, learn)
        gpflow.set_trainable(model.nat1, False)
        gpflow.set_trainable(model.prec, False)
        assert np.isfinite(gpx.fit(model, progress=False, steps=3).objective).all()
        counts.append(trace_count())
    assert counts[0] == counts[1] == counts[2]


STRUCTURED: dict[str, Callable[[], Any]] = {
    "nearest neighbours": lambda: gpx.VecchiaOptions(neighbours=3),
    "full scale": lambda: gpx.VecchiaOptions(neighbours=3, inducing=4),
    "grid": lambda: "grid",
}


@pytest.mark.parametrize("prior", STRUCTURED)
def test_a_structured_prior_is_traced_once_whatever_the_places(prior: str) -> None:
    """Of 170 and 200 places, whose trees have the same groups of other sizes; with the values of no graph."""
    cells = np.stack(np.meshgrid(np.arange(16.0), np.arange(13.0)), axis=-1).reshape(-1, 2) / 8.0

    def fitted(num_data: int) -> tuple[float, GPLaplace]:
        X = np.random.default_rng(num_data).permutation(cells)[:num_data]
        kernel = SE(active_dims=[0]) * SE(active_dims=[1])
        model = GPLaplace(
            (X, np.float64(X[:, :1] > X[:, 1:])), kernel, BernoulliLogit(), prior=STRUCTURED[prior]()
        )
        gpflow.set_trainable(model.kernel.kernels[0], False)
        gpflow.set_trainable(model.kernel.kernels[1].variance, False)
        return gpx.fit(model, progress=False, steps=1).objective[-1], model

    fitted(170)
    before = trace_count()
    objective, model = fitted(200)
    assert trace_count() == before
    np.testing.assert_allclose(objective, model.maximum_log_likelihood_objective(), rtol=1e-9)


CHANGES: dict[str, Callable[[SiteModel], None]] = {
    "frozen": lambda model: gpflow.set_trainable(model.kernel.variance, False),
    "prior": lambda model: setattr(
        model.kernel.variance, "prior", tfp.distributions.Gamma(np.float64(30.0), np.float64(1.0))
    ),
    "kernel part": lambda model: setattr(model, "kernel", model.kernel + gpflow.kernels.Linear()),
    "tied": lambda model: setattr(model.kernel, "lengthscales", model.kernel.variance),
    "mean": lambda model: setattr(model, "mean_function", gpflow.functions.Constant(1.0)),
    "patched": lambda model: setattr(model.kernel, "K_r2", lambda r2: tf.exp(-r2)),
}


class Changed(SE):
    """The kernel of the test below, whose structures nothing else compiles."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("model_class", [pytest.param(VGPKMM, marks=pytest.mark.slow), GPLaplace])
def test_a_structure_that_has_changed_is_never_trained_by_the_old_graph(
    model_class: type[SiteModel], change: str
) -> None:
    warm, fresh = (_model(model_class, kernel=Changed(variance=2.0)) for _ in range(2))
    begin = _values(warm)
    old = gpx.fit(warm, progress=False).objective
    before = trace_count()
    CHANGES[change](fresh)
    expected = gpx.fit(fresh, progress=False).objective
    assert trace_count() > before
    assert expected[-1] != old[-1]
    for variable, value in zip(warm.variables, begin, strict=True):
        variable.assign(value)
    CHANGES[change](warm)
    np.testing.assert_array_equal(gpx.fit(warm, progress=False).objective, expected)
    _assert_equal(warm, fresh)


@pytest.mark.parametrize("model_class", [VGPKMM, GPLaplace])
def test_fits_do_not_see_each_other(model_class: type[SiteModel], cold: None) -> None:
    first = _model(model_class, seed=1, variance=3.0)
    gpx.fit(first, progress=False)
    other = _model(model_class, num_data=27, seed=2, variance=0.5)
    gpx.fit(other, progress=False)
    kept, data = _values(other), [part.numpy() for part in other.data]
    again = _model(model_class, seed=1, variance=3.0)
    gpx.fit(again, progress=False)
    _assert_equal(first, again)
    for mine, its in zip(
        (*_values(other), *(part.numpy() for part in other.data)), (*kept, *data), strict=True
    ):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("learn", [False, True])
def test_nothing_of_a_model_is_kept(learn: bool, cold: None) -> None:
    model = _model(VGPKMM)
    gpflow.set_trainable(model.kernel, learn)
    gpx.fit(model, progress=False)
    references = [weakref.ref(part) for part in (model, model.kernel.variance, model.data[0], model.nat1)]
    del model
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("model_class", [pytest.param(VGPKMM, marks=pytest.mark.slow), GPLaplace])
def test_graphs_do_not_grow_with_fits(model_class: type[SiteModel], learn: bool) -> None:
    counts = []
    for seed in range(6):
        model = _model(model_class, num_data=15 + seed, seed=seed)
        gpflow.set_trainable(model.kernel, learn)
        gpx.fit(model, progress=False, steps=2)
        del model
        counts.append(_live_graphs())
    assert counts[-1] == counts[0]


def test_graphs_of_models_without_a_key_end_with_them() -> None:
    counts = []
    for seed in range(4):
        model = _model(seed=seed)
        scale = tf.Variable(1.0 + seed, dtype=tf.float64, trainable=False)
        model.kernel.K_r2 = lambda r2, scale=scale: tf.exp(-scale * r2)
        gpflow.set_trainable(model.kernel, False)
        gpx.fit(model, progress=False, steps=2)
        del model
        counts.append(_live_graphs())
    assert counts[-1] <= counts[0]


def test_the_least_recently_used_is_dropped(cold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MOST", 2)
    ends: dict[int, list[list[np.ndarray]]] = {}
    counts = []
    for _ in range(2):
        for width in (1, 2, 3):
            X, Y = problems.binary(15)
            model = GPLaplace((np.tile(X[:, :1], width), Y), SE(), BernoulliLogit())
            gpflow.set_trainable(model.kernel, False)
            gpx.fit(model, progress=False)
            ends.setdefault(width, []).append(_values(model))
        counts.append(len(functions._entries))
    assert counts == [2, 2]
    for first, second in ends.values():
        for mine, its in zip(first, second, strict=True):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("model_class", [GPLaplace, GPJaakkola, pytest.param(VGPKMM, marks=pytest.mark.slow)])
def test_a_dropped_function_frees_its_graphs(model_class: type[SiteModel], cold: None) -> None:
    before = _live_graphs()
    gpx.fit(_model(model_class), progress=False, steps=2)
    assert _live_graphs() > before
    gpx.clear_compiled()
    assert _live_graphs() == before


# ------------------------------------------------------------------------------------------ optimised graphs


class Scaled:
    """What has a function of two arguments."""

    def by(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return 2.0 * x * y


def _compiled(function: Callable[..., Any]) -> Any:
    """Return what stands for a concrete function in an entry."""
    return types.SimpleNamespace(inference_fn=types.SimpleNamespace(call_flat=function), captured_inputs=[])


@pytest.mark.parametrize("optimise", [True, False])
def test_a_graph_is_optimised_in_one_pass_or_not_at_all(optimise: bool) -> None:
    """What is seen by the call; the options of the thread are then as before."""
    seen: list[Any] = []

    def rewriting() -> Any:
        serialized = context.context().function_call_options.config_proto_serialized
        return config_pb2.ConfigProto.FromString(serialized).graph_options.rewrite_options

    def function() -> list[int]:
        seen.append(rewriting())
        return [7]

    before = rewriting()
    assert functions.Entry(_compiled(function), [tf.TensorSpec([])], optimise)() == [7]
    assert rewriting() == before
    assert seen[0].disable_meta_optimizer == (not optimise)
    assert seen[0].meta_optimizer_iterations == rewriter_config_pb2.RewriterConfig.ONE


def test_a_call_that_is_bound_once_takes_other_arguments() -> None:
    scaled, given = Scaled(), tf.constant([1.0, 2.0], tf.float64)
    call = Compiled(scaled).bound(scaled.by, given, given)
    np.testing.assert_array_equal(call(), [2.0, 8.0])
    np.testing.assert_array_equal(call(3.0 * given), [6.0, 24.0])
    np.testing.assert_array_equal(call(3.0 * given, given + 1.0), [12.0, 36.0])


def test_a_tape_records_a_call() -> None:
    compiled, x = Compiled(Scaled()), tf.constant([1.0, 2.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = compiled(Scaled().by, x, tf.ones_like(x))
    np.testing.assert_array_equal(tape.gradient(value, x), [2.0, 2.0])


def test_graphs_of_small_steps_are_not_optimised() -> None:
    X, Y = problems.binary(12)

    def model(prior: Any, columns: int = 2) -> GPLaplace:
        return GPLaplace((X[:, :columns], Y), gpflow.kernels.Matern32(), BernoulliLogit(), prior=prior)

    assert not optimises(model("markov", 1))
    assert not optimises(model("vecchia"))
    assert optimises(model(gpx.VecchiaOptions(inducing=3)))
    assert optimises(model(gpx.VecchiaOptions(solver="iterative")))
    assert optimises(model(None))


# ------------------------------------------------------------------------------------------------- threads


def test_the_first_call_of_a_function_is_made_by_one_thread() -> None:
    """In each thread that makes one TensorFlow would optimise the graph."""
    calls: list[bool] = []
    alone: list[bool] = []

    def function() -> list[int]:
        calls.append(True)
        if len(calls) == 1:
            raise ValueError("the first attempt fails")
        before = len(calls)
        time.sleep(0.02)
        alone.append(len(calls) == before)
        return [7]

    entry = functions.Entry(_compiled(function), [tf.TensorSpec([])])
    with pytest.raises(ValueError, match="first attempt"):
        entry()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: entry(), range(3))) == [[7]] * 3
    assert alone[0]


def test_threads_share_one_trace_and_give_what_each_gives_alone(cold: None) -> None:
    before = trace_count()
    models = [_model(num_data=16 + seed, seed=seed) for seed in range(4)]
    failures: list[BaseException] = []

    def train(model: SiteModel) -> None:
        try:
            gpx.fit(model, progress=False)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=train, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert trace_count() == before + 1
    for seed, model in enumerate(models):
        alone = _model(num_data=16 + seed, seed=seed)
        gpx.fit(alone, progress=False)
        _assert_equal(model, alone)


def test_a_trace_that_fails_leaves_everything_usable(cold: None) -> None:
    kernel = Raised()
    model = _model(kernel=kernel)
    kernel.broken = True
    kept = _values(model)
    with pytest.raises(RuntimeError, match="a kernel that raises"):
        gpx.fit(model, progress=False)
    for mine, its in zip(_values(model), kept, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert all(isinstance(p.unconstrained_variable, tf.Variable) for p in model.parameters)
    kernel.broken = False
    assert np.isfinite(gpx.fit(model, progress=False).objective[-1])


# --------------------------------------------------------------------------------------- users' own classes


def test_the_collector_pauses_while_a_graph_is_traced(cold: None) -> None:
    seen: list[bool] = []
    fails = False

    class Watching(SE):
        def K_r2(self, r2: tf.Tensor) -> tf.Tensor:
            seen.append(gc.isenabled())
            if fails:
                raise ValueError("the end")
            return super().K_r2(r2)

    for broken in (True, False):
        fails = False
        model = _model(kernel=Watching())
        seen.clear()
        fails = broken
        if fails:
            with pytest.raises(ValueError, match="the end"):
                Compiled(model)(model.maximum_log_likelihood_objective)
        else:
            Compiled(model)(model.maximum_log_likelihood_objective)
        assert seen
        assert not any(seen)
        assert gc.isenabled()


def test_a_kernel_that_needs_static_rows_is_compiled_for_each_number_of_them(cold: None) -> None:
    counts, ends = [], []
    for num_data in (12, 12, 17):
        kernel = Raised()
        kernel.static = True
        model = _model(num_data=num_data, kernel=kernel)
        before = trace_count()
        gpx.fit(model, progress=False)
        counts.append(trace_count() - before)
        ends.append(model.kernel.variance.numpy())
    assert counts[1] == 0
    assert counts[2] > 0
    assert ends[0] == ends[1]


class Uncopied(SE):
    """A kernel of a user's that cannot be copied."""

    def __deepcopy__(self, memo: object) -> Uncopied:
        raise TypeError("not to be copied")


def test_a_model_that_cannot_be_copied_trains_all_the_same(cold: None) -> None:
    model, expected = _model(kernel=Uncopied(variance=2.0)), _model()
    ends = [gpx.fit(each, progress=False).objective[-1] for each in (model, expected)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
    assert len(functions._entries) == 1


PRIORS = {
    "transformed": lambda: tfp.distributions.TransformedDistribution(
        tfp.distributions.Normal(np.float64(0.0), np.float64(1.0)), tfp.bijectors.Exp()
    ),
    "with a variable": lambda: tfp.distributions.Gamma(tf.Variable(np.float64(2.0)), np.float64(1.0)),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_priors_of_every_kind_enter_the_compiled_objective(prior: str, cold: None) -> None:
    ends = []
    for _ in range(2):
        model = _model()
        model.kernel.variance.prior = PRIORS[prior]()
        before = trace_count()
        ends.append(gpx.fit(model, progress=False).objective[-1])
        np.testing.assert_allclose(ends[-1], -model.training_loss(), rtol=1e-7)
    assert trace_count() == before
    assert ends[0] == ends[1]


def test_a_closure_over_a_model_sees_its_own_parameters(cold: None) -> None:
    model, expected = _model(variance=3.0), _model(variance=3.0)
    model.kernel.K_r2 = lambda r2: model.kernel.variance * tf.exp(-0.5 * r2)
    assert gpx.fit(model, progress=False).objective[-1] == pytest.approx(
        gpx.fit(expected, progress=False).objective[-1], rel=1e-9
    )


def test_a_function_that_closes_over_a_variable_reads_that_of_its_own_model(cold: None) -> None:
    ends, traced = [], []
    for scale in (0.5, 2.0):
        model, variable = _model(), tf.Variable(scale, dtype=tf.float64, trainable=False)
        model.kernel.K_r2 = lambda r2, variable=variable: tf.exp(-variable * r2)
        gpflow.set_trainable(model.kernel, False)
        before = trace_count()
        ends.append(gpx.fit(model, progress=False).objective[-1])
        traced.append(trace_count() - before)
        expected = _model(kernel=SE(lengthscales=(2.0 * scale) ** -0.5), num_data=20)
        gpflow.set_trainable(expected.kernel, False)
        expected.kernel.variance.assign(1.0)
        np.testing.assert_allclose(ends[-1], gpx.fit(expected, progress=False).objective[-1], rtol=1e-9)
    assert ends[0] != ends[1]
    assert traced == [1, 0]


# ------------------------------------------------------------------------------------------------ equality


@pytest.mark.parametrize(
    ("model_class", "likelihood", "dtype"),
    every_pair([VGPKMM, GPLaplace], [BernoulliLogit, gpflow.likelihoods.Poisson], [np.float64, np.float32]),
)
def test_eager_functions_give_the_same(
    model_class: type[SiteModel], likelihood: type[gpflow.likelihoods.Likelihood], dtype: type
) -> None:
    X, Y = problems.binary(12) if likelihood is BernoulliLogit else problems.counts(12)
    ends = []
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        for eager in (False, True):
            model = model_class((X.astype(dtype), Y.astype(dtype)), SE(), likelihood())
            gpflow.set_trainable(model.kernel, False)
            tf.config.run_functions_eagerly(eager)
            try:
                ends.append(gpx.fit(model, progress=False, steps=3).objective[-1])
            finally:
                tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(*ends, rtol=1e-9 if dtype is np.float64 else 1e-5)


class Counter(tf.Module):
    """An owner with variables, data and a method that changes them."""

    def __init__(self, data: np.ndarray) -> None:
        super().__init__()
        self.total = tf.Variable(0.0, dtype=tf.float64)
        self.data = (tf.constant(data),)
        self.compiled = Compiled(self)

    def add(self, factor: tf.Tensor) -> dict[str, tf.Tensor]:
        self.total.assign_add(factor * tf.reduce_sum(self.data[0]))
        return {"total": self.total.read_value(), "rows": tf.shape(self.data[0])[0]}

    def added(self, values: tf.Tensor) -> tf.Tensor:
        return values + self.total

    def held(self) -> tf.Tensor:
        return self.data[0] + self.total


def specification(compiled: Compiled, method: Any, *arguments: Any) -> Any:
    """The shapes and dtypes of what a call returns, unknown where rows are left open."""
    arguments = tuple(map(tf.convert_to_tensor, arguments))
    return compiled._entry(method, arguments, compiled._present()).outputs


def test_methods_change_the_variables_of_their_owner_alone() -> None:
    first, second = Counter(np.ones(3)), Counter(np.ones(5))
    before = trace_count()
    outcome = first.compiled(first.add, np.float64(2.0))
    assert (float(outcome["total"]), int(outcome["rows"])) == (6.0, 3)
    assert float(second.compiled(second.add, np.float64(1.0))["total"]) == 5.0
    assert float(first.compiled(first.add, np.float64(1.0))["total"]) == 9.0
    assert float(second.total) == 5.0
    assert trace_count() == before + 1
    assert specification(first.compiled, first.add, np.float64(1.0))["total"].shape == []


def test_rows_are_left_open_only_where_they_may_be(cold: None) -> None:
    before = trace_count()
    for rows in (3, 5, 3):
        owner = Counter(np.ones(rows))
        static = Compiled(owner, rows=None)
        assert float(static(owner.add, np.float64(1.0))["total"]) == rows
        opened = Compiled(owner, rows=[7])
        assert specification(opened, owner.added, np.ones([7, 2])).shape == [None, 2]
        assert specification(opened, owner.held).shape == [None]
        assert specification(static, owner.added, np.ones([7, 2])).shape == [7, 2]
        assert specification(static, owner.held).shape == [rows]
    assert trace_count() == before + 8


def _squares() -> Any:
    """Return a function with a graph and a gradient of its own."""

    @tf.custom_gradient
    def squared(x: tf.Tensor) -> Any:
        return x * x, lambda upstream: 2.0 * x * upstream

    return tf.function(squared, autograph=False)


def _released(function: Any) -> tuple[set[str], Any]:
    """Return the gradients that there were, and the graph of another function that calls one."""
    before, spec = gradients.registered(), tf.TensorSpec([], tf.float64)
    first = tf.function(lambda x: function(x), autograph=False).get_concrete_function(spec)
    gradients.release(before, first.graph)
    return before, first


def test_a_gradient_outlives_the_graph_in_which_its_function_was_first_called() -> None:
    """As that of `tfp.math.lbeta`, after the fit of a model with a Beta prior."""
    squares = _squares()
    _released(squares)
    gc.collect()
    again = tf.function(lambda x: squares(x), autograph=False)

    @tf.function(autograph=False)
    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = again(x)
        return tape.gradient(y, x)

    assert float(slope(tf.constant(3.0, tf.float64))) == 6.0


def test_a_gradient_goes_with_its_graph() -> None:
    before, first = _released(_squares())
    assert len(gradients.registered() - before) == 1
    del first
    gc.collect()
    assert not gradients.registered() - before

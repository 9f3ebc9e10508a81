"""What decides a compiled graph: the keys of structures."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.compiled import examine
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import GPLaplace, GPTaylor

SE = gpflow.kernels.SquaredExponential


class Scaled(SE):
    """A user's kernel with a plain attribute."""

    def __init__(self, factor: float, **options: object) -> None:
        super().__init__(**options)
        self.factor = factor

    def K_r2(self, r2: tf.Tensor) -> tf.Tensor:
        return self.factor * super().K_r2(r2)

    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        return self.factor * super().K_diag(X)


@dataclass
class Option:
    """A user's plain object, which is no module."""

    degree: int


def _model(
    kernel: gpflow.kernels.Kernel | None = None,
    likelihood: gpflow.likelihoods.Likelihood | None = None,
    num_data: int = 20,
    width: int = 2,
    seed: int = 0,
    **options: object,
) -> GPLaplace:
    X = problems.inputs(num_data, seed, width)
    Y = (X[:, :1] > 0.0).astype(float)
    return GPLaplace((X, Y), kernel or SE(), likelihood or BernoulliLogit(), **options)


def _sum(tied: bool) -> gpflow.kernels.Kernel:
    parts = SE() + SE()
    if tied:
        parts.kernels[1].lengthscales = parts.kernels[0].lengthscales
    return parts


def _with_prior(rate: float, on: str = "constrained") -> gpflow.kernels.Kernel:
    kernel = SE()
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(1.0), np.float64(rate))
    kernel.variance.prior_on = on
    return kernel


def _bounded(lower: float) -> gpflow.kernels.Kernel:
    kernel = SE()
    kernel.lengthscales = gpflow.Parameter(1.0, transform=gpflow.utilities.positive(lower))
    return kernel


def _frozen() -> gpflow.kernels.Kernel:
    kernel = SE()
    gpflow.set_trainable(kernel.lengthscales, False)
    return kernel


def _attributed(value: object) -> gpflow.kernels.Kernel:
    kernel = SE()
    kernel.note = value
    return kernel


class Slotted(SE):
    """A user's kernel with an attribute in a slot."""

    __slots__ = ("factor",)


def _slotted(factor: float) -> gpflow.kernels.Kernel:
    kernel = Slotted()
    kernel.factor = factor
    return kernel


class Unit(float):
    """A number with an attribute."""


class Members(list):
    """A list with an attribute."""


class Table(dict):
    """A dictionary with an attribute."""


class Rows(np.ndarray):
    """An array with an attribute."""


class Scale(gpflow.Parameter):
    """A parameter with an attribute."""


def _noted(value: object, note: float) -> gpflow.kernels.Kernel:
    """Return a kernel with an attribute that has an attribute."""
    value.note = note
    return _attributed(value)


class Times(tfp.bijectors.Bijector):
    """A user's bijector, which does not name its arguments."""

    def __init__(self, factor: float) -> None:
        super().__init__(forward_min_event_ndims=0, is_constant_jacobian=True)
        self.factor = factor

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        return self.factor * x

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        return y / self.factor

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.constant(self.factor, x.dtype))


def _times(factor: float) -> gpflow.kernels.Kernel:
    kernel = SE()
    kernel.variance = gpflow.Parameter(1.0, transform=Times(factor))
    return kernel


class Tempered(tfp.distributions.Gamma):
    """A user's prior with an attribute that changes."""

    note = 1.0


def _tempered() -> gpflow.kernels.Kernel:
    kernel = SE()
    kernel.variance.prior = Tempered(np.float64(1.0), np.float64(1.0))
    return kernel


def _with_default(value: object) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x, value=value: x * value


DIFFERENT: dict[str, Callable[[], GPLaplace]] = {
    "base": _model,
    "sum": lambda: _model(_sum(False)),
    "tied": lambda: _model(_sum(True)),
    "ARD": lambda: _model(SE(lengthscales=[1.0, 1.0])),
    "prior": lambda: _model(_with_prior(1.0)),
    "another prior": lambda: _model(_with_prior(2.0)),
    "prior on the unconstrained value": lambda: _model(_with_prior(1.0, "unconstrained")),
    "lower bound": lambda: _model(_bounded(1e-3)),
    "another bound": lambda: _model(_bounded(1e-2)),
    "frozen": lambda: _model(_frozen()),
    "user's kernel": lambda: _model(Scaled(2.0)),
    "its attribute": lambda: _model(Scaled(3.0)),
    "an integer in its place": lambda: _model(Scaled(3)),
    "true in its place": lambda: _model(Scaled(True)),
    "one in its place": lambda: _model(Scaled(1)),
    "dimensions": lambda: _model(SE(active_dims=[0])),
    "other dimensions": lambda: _model(SE(active_dims=[1])),
    "exact": lambda: _model(likelihood=BernoulliLogit(bound=None)),
    "fewer pieces": lambda: _model(likelihood=BernoulliLogit(bound="piecewise", num_pieces=10)),
    "likelihood": lambda: _model(likelihood=gpflow.likelihoods.Bernoulli()),
    "mean function": lambda: _model(mean_function=gpflow.functions.Constant()),
    "width": lambda: _model(width=3),
    "inducing": lambda: _model(inducing_variable=np.zeros([1, 2])),
    "more inducing": lambda: _model(inducing_variable=np.array([[0.0, 0.0], [1.0, 1.0]])),
    "method": lambda: GPTaylor(_model().data, SE(), BernoulliLogit()),
    "plain object": lambda: _model(_attributed(Option(2))),
    "another plain object": lambda: _model(_attributed(Option(3))),
    "closure over a number": lambda: _model(_attributed((lambda c: lambda x: x * c)(2.0))),
    "another number": lambda: _model(_attributed((lambda c: lambda x: x * c)(3.0))),
    "closure over a variable": lambda: _model(_attributed((lambda c: lambda x: x * c)(tf.Variable(1.0)))),
    "default of a variable": lambda: _model(_attributed(_with_default(tf.Variable(1.0)))),
    "closure over a tensor": lambda: _model(_attributed((lambda c: lambda x: x * c)(tf.constant(1.0)))),
    "closure over a kernel": lambda: _model(_attributed((lambda c: lambda x: x * c.variance)(SE()))),
    "array": lambda: _model(_attributed(np.arange(2000.0))),
    "another array": lambda: _model(_attributed(np.arange(2000.0)[::-1])),
    "tensor": lambda: _model(_attributed(tf.constant([1.0, 2.0]))),
    "longer tensor": lambda: _model(_attributed(tf.constant([1.0, 3.0, 2.0]))),
    "number": lambda: _model(_attributed(tf.constant(1.0))),
    "integers": lambda: _model(_attributed(tf.constant([1, 2]))),
    "other integers": lambda: _model(_attributed(tf.constant([1, 3]))),
    "list": lambda: _model(_attributed([0, 1])),
    "tuple": lambda: _model(_attributed((0, 1))),
    "mask": lambda: _model(_attributed(np.ma.masked_array([1.0, 2.0], [0, 1]))),
    "another mask": lambda: _model(_attributed(np.ma.masked_array([1.0, 2.0], [1, 0]))),
    "slot": lambda: _model(_slotted(1.0)),
    "another slot": lambda: _model(_slotted(2.0)),
    "number with a note": lambda: _model(_noted(Unit(1.0), 1.0)),
    "number with another note": lambda: _model(_noted(Unit(1.0), 2.0)),
    "list with a note": lambda: _model(_noted(Members([1.0]), 1.0)),
    "list with another note": lambda: _model(_noted(Members([1.0]), 2.0)),
    "dictionary with a note": lambda: _model(_noted(Table(a=1.0), 1.0)),
    "dictionary with another note": lambda: _model(_noted(Table(a=1.0), 2.0)),
    "default": lambda: _model(_attributed(collections.defaultdict(int))),
    "another default": lambda: _model(_attributed(collections.defaultdict(float))),
    "array with a note": lambda: _model(_noted(np.ones(2).view(Rows), 1.0)),
    "array with another note": lambda: _model(_noted(np.ones(2).view(Rows), 2.0)),
    "parameter with a note": lambda: _model(_noted(Scale(1.0), 1.0)),
    "parameter with another note": lambda: _model(_noted(Scale(1.0), 2.0)),
    "record": lambda: _model(_attributed(np.array([(1, 2.00000001)], "i4, f8")[0])),
    "another record": lambda: _model(_attributed(np.array([(1, 2.00000002)], "i4, f8")[0])),
    "user's bijector": lambda: _model(_times(1.0)),
    "another user's bijector": lambda: _model(_times(2.0)),
    "method of a dictionary": lambda: _model(_attributed({"a": 1.0}.get)),
    "method of another dictionary": lambda: _model(_attributed({"a": 2.0}.get)),
    "not a number": lambda: _model(_attributed(float("nan"))),
}


def test_what_decides_a_graph_decides_the_key() -> None:
    keys = {name: examine(build()).key for name, build in DIFFERENT.items()}
    assert len(set(keys.values())) == len(keys), [
        (a, b) for a in keys for b in keys if a < b and keys[a] == keys[b]
    ]


@pytest.mark.parametrize("name", DIFFERENT)
def test_models_built_alike_have_equal_keys(name: str) -> None:
    first, second = (examine(DIFFERENT[name]()) for _ in range(2))
    assert first.key == second.key
    assert not first.refused
    assert hash(first.key) == hash(second.key)
    assert [v.shape.as_list() for v in first.variables] == [v.shape.as_list() for v in second.variables]


def test_values_and_the_number_of_rows_decide_nothing() -> None:
    model = _model(SE(variance=3.0), num_data=25, seed=5)
    model.nat1.assign(tf.ones_like(model.nat1))
    assert examine(model).key == examine(_model()).key


def test_tensors_of_real_numbers_are_arguments() -> None:
    first, second = (examine(_model(_attributed(tf.constant(value)))) for value in ([1.0, 2.0], [1.0, 3.0]))
    assert first.key == second.key
    assert [1.0, 2.0] in [part.numpy().tolist() for part in first.tensors]


def test_training_leaves_the_key_as_it_is() -> None:
    model = _model()
    key = examine(model).key
    model.training_loss()
    model.predict_y(model.data[0])
    model.trainable_parameters[0].log_prior_density()
    assert examine(model).key == key


def test_a_changed_structure_is_another_key() -> None:
    model, keys = _model(), []
    keys.append(examine(model).key)
    gpflow.set_trainable(model.kernel.variance, False)
    keys.append(examine(model).key)
    model.kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    keys.append(examine(model).key)
    model.kernel = model.kernel + gpflow.kernels.White()
    keys.append(examine(model).key)
    assert len(set(keys)) == len(keys)


def test_attributes_that_change_in_place_change_the_key() -> None:
    table, mask = {"a": 1.0}, np.ma.masked_array([1.0, 2.0], [False, True])
    slotted, tempered = _slotted(1.0), _tempered()
    kernels = [_attributed(table.get), _attributed(mask), slotted, tempered]
    before = [examine(kernel).key for kernel in kernels]
    table["a"], mask[0], slotted.factor, tempered.variance.prior.note = 2.0, np.ma.masked, 2.0, 2.0
    after = [examine(kernel).key for kernel in kernels]
    assert all(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "value",
    [
        lambda: iter([1]),
        lambda: (lambda numbers: lambda x: x * next(numbers))(iter([1])),
        lambda: tf.data.Dataset.range(3),
        lambda: tf.function(lambda x: x),
        lambda: {1, 2},
        lambda: np.array([object()]),
    ],
)
def test_what_no_rule_covers_has_no_key(value: Callable[[], object]) -> None:
    (reason,) = examine(_model(_attributed(value()))).refused
    assert reason.startswith("GPLaplace.kernel.note")


def test_an_array_in_a_file_has_no_key_and_is_not_read(tmp_path) -> None:
    np.save(tmp_path / "array.npy", np.ones(3))
    (reason,) = examine(_model(_attributed(np.load(tmp_path / "array.npy", mmap_mode="r")))).refused
    assert reason == "GPLaplace.kernel.note: an array in a file"


class Holder:
    """A plain object with data."""

    def __init__(self, *data: object) -> None:
        self.data = data


def test_data_that_a_part_shares_are_arguments_once() -> None:
    """Whatever else the part holds; which of them it shares is in the key."""
    a, b, c = (tf.fill([5], value) for value in (1.0, 2.0, 3.0))

    def found(*inner: tf.Tensor) -> tuple:
        structure = examine([Holder(a, b), Holder(*inner)])
        return structure.key, structure.data, structure.constants

    key, tensors, constants = found(b, c)
    assert [id(tensor) for tensor in tensors] == [id(a), id(b), id(c)]
    assert constants == []
    assert key == found(b, tf.fill([5], 4.0))[0]
    assert len({key, found(a, c)[0], found(c, b)[0], found(b, a)[0]}) == 4


def test_a_key_is_quick() -> None:
    kernel = SE() + SE() + SE() + SE() + SE()
    model = _model(kernel)
    examine(model)
    seconds = []
    for _ in range(20):
        begin = time.process_time()
        examine(model)
        seconds.append(time.process_time() - begin)
    assert min(seconds) <= 2e-3


def test_a_function_that_holds_its_own_model_decides_the_key_as_its_code_does() -> None:
    models = [_model(), _model(), _model()]
    for model, row in zip(models, (0, 0, 1), strict=True):
        model.kernel.note = lambda model=model, row=row: model.data[0][row]
    first, alike, other = map(examine, models)
    assert not first.refused
    assert first.key == alike.key != other.key


def test_what_another_thread_has_cleared_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    softplus = tfp.bijectors.Softplus()
    values = softplus.forward(tf.constant(1.0)), softplus.inverse(tf.constant(2.0))
    keys = softplus._cache.weak_keys()
    assert len(keys) >= len(values)
    monkeypatch.setattr(type(softplus._cache), "weak_keys", lambda _: keys)
    for _ in range(2):
        examine(softplus).clear_caches()
    assert not set(keys) & set(softplus._cache.storage)

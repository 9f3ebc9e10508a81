"""GPflow's contract of predictions: inputs [batch..., N, D] with any batch axes, for every flag and every model.

The reference of a batch are predictions of the same model at all rows of a pool, without batch axes: a member's
covariance is a block of the joint one. Batches are as long as whatever an axis could be mistaken for: the data,
the inducing points, the draws, the outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from check_shapes.exceptions import ShapeMismatchError
from gpflow.models import GPModel
from gpflow.posteriors import PrecomputeCacheType
from marks import SLOW, others_slow

import gpflow_ext
from conformance import models
from conformance.models import Entry
from gpflow_ext.numerics.batched import Rows

POOL = np.random.default_rng(10).uniform(-2.0, 2.0, (9, models.WIDTH))
FEW = [(models.NUM_INDUCING, 1), (2, 3, 2)]  # of inputs without their last axis
MANY = [
    *((length, 3) for length in (1, 2, 3, models.NUM_DRAWS, models.NUM_INDUCING, models.NUM_DATA)),
    (models.NUM_INDUCING, 1),
    (3, models.NUM_INDUCING),
    (2, models.NUM_DATA),
    (1, 1),
    (2, 0),
    (0, 2),
    (0, 0),
]
FLAGS = list(itertools.product([False, True], repeat=2))
ALL = list(models.ENTRIES.values())
OURS = models.entries(without=["gpflow"])
OPEN = {"VGPKMM", "VGPKMM, inducing points", "SVGPRobustMax", "SGPMCFreeForm, draws", "GPRNTensor", "SVGP"}
Pool = dict[Any, Any]


def each(entries: list[Entry], quick: Container[str] | None = None) -> pytest.MarkDecorator:
    """Parametrise a test by the entry of a model; all but the ``quick`` are tried in long runs only."""
    cases = [
        pytest.param(entry, id=entry.name, marks=[] if quick is None or entry.name in quick else [SLOW])
        for entry in entries
    ]
    return pytest.mark.parametrize("entry", cases, indirect=True, scope="module")


@pytest.fixture(scope="module", name="entry")
def _entry(request: pytest.FixtureRequest) -> Entry:
    return request.param


@pytest.fixture(scope="module", name="model")
def _model(entry: Entry) -> GPModel:
    """The model of an entry, built once for all tests that leave it as it is."""
    return entry.build()


@pytest.fixture(scope="module", name="pool")
def _pool(entry: Entry, model: GPModel) -> Pool:
    """Predictions at the rows of the pool, by the flags, and of their targets."""
    pool: Pool = {
        flags: [part.numpy() for part in model.predict_f(POOL, *flags)]
        for flags in FLAGS
        if answers(entry, *flags, batched=False)
    }
    pool["y"] = [part.numpy() for part in model.predict_y(POOL)]
    pool["log density"] = [model.predict_log_density((POOL, targets(entry))).numpy()]
    return pool


def answers(entry: Entry, full_cov: bool, full_output_cov: bool, batched: bool) -> bool:
    """Whether the flags are for the model. GPflow's own fail for both in a batch, where ours need not."""
    if entry.name in ("GPR", "VGP"):
        return not full_output_cov
    if "network" in entry.tags or (batched and not entry.is_ours):
        return not (full_cov and full_output_cov)
    return True


def targets(entry: Entry) -> np.ndarray:
    """Targets of the rows of the pool."""
    return entry.Y[np.arange(len(POOL)) % len(entry.Y)]


def rows(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of rows of the pool, different ones within each member of a batch."""
    rng = np.random.default_rng(len(shape))
    members = [rng.permutation(len(POOL))[: shape[-1]] for _ in range(int(np.prod(shape[:-1])))]
    return np.reshape(np.array(members, int), shape)


def block(cov: np.ndarray, index: np.ndarray, full_cov: bool, full_output_cov: bool) -> np.ndarray:
    """The (co)variances of rows of the pool."""
    if not full_cov:
        return cov[index]
    first, second = index[..., :, None], index[..., None, :]
    if not full_output_cov:
        return np.moveaxis(cov[:, first, second], 0, -3)
    return np.swapaxes(cov.transpose(0, 2, 1, 3)[first, second], -3, -2)


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def assert_members_of(pool: Pool, index: np.ndarray, flags: tuple[bool, bool], found: Any) -> None:
    mean, cov = pool[flags]
    assert_close(found, (mean[index], block(cov, index, *flags)))


def batches(entry: Entry, flags: tuple[bool, bool], shapes: list[tuple[int, ...]]) -> Iterator[np.ndarray]:
    return map(rows, shapes if answers(entry, *flags, batched=True) else [])


def test_every_model_is_under_contract() -> None:
    assert {type(entry.build()).__name__ for entry in OURS} == set(gpflow_ext.models.__all__)


@pytest.mark.feature("predict flags")
@each(ALL)
def test_flags_are_of_one_covariance(entry, pool) -> None:
    """The mean is the same, variances are diagonals of covariances, and these blocks of the joint one."""
    mean, var = pool[False, False]
    count, outputs = mean.shape
    axes = {(True, False): "pnn->np", (False, True): "npp->np", (True, True): "npnp->np"}
    for flags in pool.keys() & axes.keys():
        assert_close([pool[flags][0], np.einsum(axes[flags], pool[flags][1])], [mean, var])
    if (True, True) in pool:
        joint = pool[True, True][1]
        assert joint.shape == (count, outputs, count, outputs)
        assert_close([np.einsum("npmp->pnm", joint)], [pool[True, False][1]])
        assert_close([np.einsum("npnq->npq", joint)], [pool[False, True][1]])


@pytest.mark.feature("batch dimensions")
@pytest.mark.parametrize("flags", FLAGS)
@each(ALL, quick=models.QUICK)
def test_a_batch_is_predicted_as_its_members(entry, model, pool, flags) -> None:
    for index in batches(entry, flags, FEW):
        assert_members_of(pool, index, flags, model.predict_f(POOL[index], *flags))


@pytest.mark.feature("batch dimensions")
@each(ALL, quick=models.QUICK)
def test_y_and_its_density_are_those_of_the_members(entry, model, pool) -> None:
    def density(index: np.ndarray) -> tf.Tensor:
        return model.predict_log_density((POOL[index], targets(entry)[index]))

    for index in map(rows, FEW):
        assert_close(model.predict_y(POOL[index]), [part[index] for part in pool["y"]])
        if "network" not in entry.tags:
            assert_close([density(index)], [pool["log density"][0][index]])
    if "network" in entry.tags:  # of random numbers for each place in a member
        index = rows((2, 3))
        assert_close(density(index), [density(member) for member in index])


@pytest.mark.feature("open shapes")
@each(ALL, quick=OPEN)
def test_a_graph_for_open_shapes_predicts_every_batch(entry, model, pool) -> None:
    flags = [flags for flags in FLAGS if answers(entry, *flags, batched=True)]

    def everything(X: tf.Tensor, Y: tf.Tensor) -> Any:
        latent = [model.predict_f(X, *these) for these in flags]
        return latent, model.predict_y(X), model.predict_log_density((X, Y))

    widths = models.WIDTH, entry.Y.shape[1]
    signature = [tf.TensorSpec([None, None, width], tf.float64) for width in widths]
    compiled = tf.function(everything, input_signature=signature, autograph=False)
    for index in map(rows, MANY):
        latent, y, density = compiled(POOL[index], targets(entry)[index])
        for these, found in zip(flags, latent, strict=True):
            assert_members_of(pool, index, these, found)
        assert_close(y, [part[index] for part in pool["y"]])
        if "network" not in entry.tags:
            assert_close([density], [pool["log density"][0][index]])
        assert density.shape == index.shape


@pytest.mark.feature("cache update")
@each(ALL, quick=models.QUICK)
def test_a_cached_posterior_predicts_every_batch(entry, model, pool) -> None:
    if not hasattr(model, "posterior"):
        pytest.skip("GPflow's SGPMC has no posterior().")
    posterior = model.posterior()
    for flags in pool.keys() & set(FLAGS):
        assert_close(posterior.predict_f(POOL, *flags), pool[flags])
        for index in batches(entry, flags, FEW[1:]) if entry.is_ours else ():  # GPflow's caches take no batch
            assert_members_of(pool, index, flags, posterior.predict_f(POOL[index], *flags))


@pytest.mark.feature("cache update")
@each(ALL, quick=models.QUICK)
def test_a_cache_follows_its_model(entry) -> None:
    model, X = entry.build(), POOL[rows((2, 3))] if entry.is_ours else POOL[:3]
    if not hasattr(model, "posterior"):
        pytest.skip("GPflow's SGPMC has no posterior().")
    posterior = model.posterior(PrecomputeCacheType.VARIABLE)
    before = [part.numpy() for part in posterior.predict_f(X)]
    entry.move(model)
    posterior.update_cache()
    found, expected = posterior.predict_f(X), model.predict_f(X)
    assert_close(found, expected)
    assert np.abs(found[0] - before[0]).max() > 1e-3
    assert_close(posterior.fused_predict_f(X), expected)


@pytest.mark.feature("batch dimensions")
@each(ALL, quick=models.QUICK)
def test_samples_have_the_moments_of_the_members(entry, model) -> None:
    tf.random.set_seed(0)
    index, number = rows((2, 3, 2)), 1000
    samples = model.predict_f_samples(POOL[index], number).numpy()
    mean, cov = (part.numpy() for part in model.predict_f(POOL[index], full_cov=True))
    P = mean.shape[-1]
    assert samples.shape == (2, 3, number, 2, P)
    deviation = np.sqrt(np.swapaxes(np.diagonal(cov, axis1=-2, axis2=-1), -2, -1))
    # 5.5 standard errors: a chance of 4e-8 for each of the 6·2·P means.
    assert (np.abs(samples.mean(axis=-3) - mean) < 5.5 * deviation / np.sqrt(number)).all()
    apart = (samples - mean[..., None, :, :]) / deviation[..., None, :, :]
    found = np.einsum("abscp,absdp->abpcd", apart, apart) / number
    scale = np.moveaxis(deviation, -1, -2)
    expected = cov / (scale[..., :, None] * scale[..., None, :])
    # Standard errors are 0.03 to 0.05, a little more where samples are of a mixture.
    assert np.abs(found - expected).max() < 0.35
    assert model.predict_f_samples(POOL[index]).shape == (2, 3, 2, P)
    assert model.predict_f_samples(POOL[:2], 3).shape == (3, 2, P)
    assert model.predict_f_samples(POOL[:2]).shape == (2, P)


@pytest.mark.feature("predict flags")
@each(OURS)
def test_flags_that_are_refused_are_named(entry, model) -> None:
    X, Y = POOL[rows((2, 3))], targets(entry)[rows((2, 3))]
    calls = [
        lambda flags: model.predict_y(X, **flags),
        lambda flags: model.predict_log_density((X, Y), **flags),
    ]
    for call, flag in itertools.product(calls, ["full_cov", "full_output_cov"]):
        with pytest.raises(NotImplementedError, match=flag):
            call({flag: True})
    both = {"full_cov": True, "full_output_cov": True}
    with pytest.raises(NotImplementedError, match="full_output_cov"):
        model.predict_f_samples(X, 2, **both)
    if "network" in entry.tags:
        with pytest.raises(NotImplementedError, match=r"full_cov and full_output_cov together.*one of them"):
            model.predict_f(X, **both)


@each(models.entries("dependent-outputs", "free-form"))
def test_dependent_outputs_covary_as_their_samples(entry, model, pool) -> None:
    tf.random.set_seed(1)
    samples = model.predict_f_samples(POOL[:1], 4000).numpy()[:, 0]
    cov = pool[False, True][1][0]
    off = np.triu_indices(len(cov), 1)
    scale = np.sqrt(np.diagonal(cov))
    expected = (cov / np.outer(scale, scale))[off]
    assert np.abs(expected).max() > 0.1
    found = np.corrcoef(samples, rowvar=False)[off]
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.08)  # five standard errors


@each(models.entries("free-form", without=["gpflow"]))
def test_predictions_of_rows_refuse_a_batch(entry, model) -> None:
    with pytest.raises(
        ValueError, match=r"X must be inputs \[N, D\]; its shape is \(5, 1, 2\): .* predict_f"
    ):
        model.predictions(POOL[rows((models.NUM_INDUCING, 1))])


@each(OURS, quick=models.QUICK)
def test_whole_numbers_and_other_precisions_are_taken(entry, model) -> None:
    """In arrays, as data frames of counts or images give them, and in tensors."""
    X, Y = np.round(2.0 * POOL[:4]), np.round(targets(entry)[:4])
    f, y, density = model.predict_f(X), model.predict_y(X), model.predict_log_density((X, Y))
    full = model.predict_f(X, full_cov=True)
    for given, kind in itertools.product([np.asarray, tf.constant], [np.int64, np.float32]):
        inputs, labels = given(X.astype(kind)), given(Y.astype(kind))
        assert_close(model.predict_f(inputs), f)
        assert_close(model.predict_f(inputs, full_cov=True), full)
        assert_close(model.predict_y(inputs), y)
        assert_close([model.predict_log_density((inputs, labels))], [density])
        assert_close(model.posterior().predict_f(inputs), f)
        assert model.predict_f_samples(inputs, 2).dtype == tf.float64


@each(OURS, quick=models.QUICK)
def test_inputs_of_another_width_are_refused(entry, model) -> None:
    """One column must not be broadcast, nor more columns be left out; many kernels refuse them by themselves."""
    refusals = "where those of the model have 2|Tensor shape mismatch|must be equal"
    for width in (1, models.WIDTH + 1):
        for predict in (model.predict_f, model.posterior().predict_f):
            with pytest.raises((ValueError, ShapeMismatchError), match=refusals):
                predict(np.full([3, width], 0.3))


@pytest.mark.parametrize("dtype", others_slow([np.int64, np.float32], np.int64))
def test_a_model_without_data_is_trained_by_whole_numbers(dtype: type) -> None:
    entry = models.ENTRIES["SVGPRobustMax"]
    X, Y = np.round(2.0 * models.INPUTS), entry.Y
    model, given = entry.build(), (X.astype(dtype), Y.astype(dtype))
    assert_close([model.training_loss(given)], [model.training_loss((X, Y))])
    minibatches = [data_set(given), data_set((X, Y))]
    found, expected = (entry.build() for _ in minibatches)
    for trained, each_of in zip((found, expected), minibatches, strict=True):
        gpflow_ext.fit(trained, each_of, steps=2, progress=False)
    assert_close(found.predict_f(X), expected.predict_f(X))


def data_set(data: tuple[np.ndarray, np.ndarray]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(4).repeat()


def test_what_is_no_number_is_refused() -> None:
    model = models.ENTRIES["VGPKMM"].build()
    for call in (model.predict_f, model.predict_y, model.posterior().predict_f):
        with pytest.raises(ValueError, match="must be numbers; got string: encode them first"):
            call(np.array([["a", "b"]]))


def test_inputs_without_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"their shape is \(2,\): reshape one input to \[1, D\]"):
        Rows(POOL[0])


def test_gradients_reach_every_member() -> None:
    """Of acquisition functions, say: those of a batch are those of its members."""
    model, index = models.ENTRIES["SparseEP, classes"].build(), rows((2, 3))
    X = tf.constant(POOL[index])

    def gradient(X: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(X)
            mean, cov = model.predict_f(X, full_cov=True)
            value = tf.reduce_sum(mean) + tf.reduce_sum(tf.linalg.logdet(cov))
        return tape.gradient(value, X)

    assert_close(gradient(X), [gradient(member) for member in X])


def test_one_free_form_draw_is_what_gpflow_predicts() -> None:
    """New inputs in a batch as long as the inducing points: GPflow's own predictions, member by member."""
    ours, theirs = models.ENTRIES["SGPMCFreeForm"].build(), models.ENTRIES["SGPMC"].build()
    theirs.num_latent_gps, theirs.V = ours.num_latent_gps, ours.V
    for index in map(rows, [(models.NUM_INDUCING, 1), (models.NUM_INDUCING, 3), (3, 2), (1, 1)]):
        for full_cov in (False, True):
            found = ours.predict_f(POOL[index], full_cov)
            for one, other in zip(found, theirs.predict_f(POOL[index], full_cov), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)

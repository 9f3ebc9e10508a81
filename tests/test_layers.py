"""The import rule: a module imports only what stands before it in `TOWER`, floor by floor and room by room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "gpflow_ext"
# Floors from the ground up, each with its rooms in order. Rooms of one floor do not see each other; the modules
# of a room see those of lower floors, and those of their own room that stand before them.
TOWER: list[dict[str, str]] = [
    {"_collector": ""},
    {"_version": "", "_lazy": "", "_html": "", "citations": ""},
    {
        "numerics": "anderson open_sizes devices some_rows mapped arc_cosine conjugate_gradients lanczos centred exposures philox batched once triangular positive_triangular linalg bound_tables special stacked grids logistic probit student_t integrals bounds target_moments log_predictive"
    },
    {"compiled": "structure gradients kernels options products purity functions preferred replicas ."},
    {
        "data": "float_type arguments checks own_parts held parts on_host length_scales inducing order rows reading.problems reading.marks reading.cells reading.clock reading.units reading.dates reading.date_forms reading.table reading.text "
        "reading.frames reading.source reading.treatment reading.hints reading.inference datasets.catalogue datasets.split datasets.raw datasets.targets "
        "datasets.openml datasets.grids datasets.events datasets.files datasets.idx datasets.arrays datasets.missing datasets.sources datasets.loading datasets"
    },
    {"features": "wavelets scattering kernel twin .", "convolution": "sums kernel"},
    {"functions": "randomness frequencies features given paths product draws"},
    {
        "sites": "products algebra conjugate projection dense coupled small chunked state_space sweeps markov method concavity units . latent dense_prior "
        "sparse_prior markov_prior posterior triangular_posterior mixed_posterior marginal_posterior markov_posterior vecchia.ordering vecchia.grouping vecchia.dissection "
        "vecchia.steps vecchia.fronts vecchia.blocks vecchia.rows vecchia.prior vecchia.levels vecchia.sweeps vecchia.preconditioned vecchia.iterative "
        "vecchia.coefficients vecchia.residual vecchia.full_scale vecchia.structure vecchia.iterative_structure vecchia.conditionals vecchia.check vecchia.posterior "
        "vecchia.iterative_posterior vecchia.full_scale_posterior vecchia grid.kronecker "
        "grid.krylov grid.trace grid.prior grid.factors grid.structure grid.posterior grid structured model"
    },
    {
        "likelihoods": "label_noise counts overdispersed classes weighted standardised student_t largest_evenly largest_graded largest largest_utility softmax binary categorical ordinal robust_max ."
    },
    {
        "prediction": "densities functions composed average learnt rescaled batches held_out metrics baselines predictor plotting dependence"
    },
    {
        "persistence": "durable verify.operations verify.protobuf verify.folder verify.signing verify.columns verify.manifest manifest verify.saver "
        "verify.objects verify.graph verify.tables verify.check verify known record checkpoint rebuild folding row_blocks joint_draws raw_rows card onnx_functions onnx_nodes numbered targets portable predict_jax stablehlo serving exported export ."
    },
    {
        "training": "deadline line open_end mean_units log_space at_values starts interrupts loop ends loss progress distribute options overrides solver search guarded lbfgs line_search climb lbfgs_in_graph gradient optimizers schedules recipe trials gradient_descent "
        "lbfgs_recipe hyperparameters site_iteration site_recipe site_twin scale rising findings memory workers continuation execution"
    },
    {
        "sampling": "surrogate tuning options diagnostics summary draws holds_draws averaging hmc iterations affine target gibbs adaptation chains sampleable tuners latents density "
        "draws_posterior coordinates.general coordinates.sites coordinates.joint_sites coordinates.rescaled "
        "coordinates.freeform coordinates approximation sampled_freeform freeform sample"
    },
    {
        "kmm": "newton ascent joint held algorithm1 method model recipe",
        "ep": "seen_posterior unwhitened moment_matching sign_agreement removal factors sweeps engine optimum method distributed "
        "minibatch_model minibatch_updates stochastic model minibatches recipe",
        "laplace": "expansion updates nearby method model recipe",
        "svgp": "points sag projected_newton newton_mean whitened_normal natural_gradient last_pass minibatch_ascent early_stopping dual model whitened vi_means joint_ascent whole_data unwhitened labels recipe svi dual_recipe gpflow_models",
        "gprn": "factors blocks network outputs scales tensor_normal node_kernels functions conditional priors profiled sampled tensor collapsed members renewal "
        "predictions posterior draws missing model updates block_ascent coregionalised suited starts profiled_ascent recipe",
    },
    {"models": "", "kernels": "", "zoo": ""},
    {"server": ". limits raw_rows calls model metrics page app connections command"},
    {"fitting": ""},
    {"loading": ""},
    {"cross_validation": "", "reporting": "", "node_choice": ""},
    {
        "estimators": "checked kernels ladder warm base classes real classifier ordinal regressor counts networks outputs candidates averaging rungs halving conditioning larger refit reasons chosen auto ."
    },
    {"sklearn": ""},
    {
        "cli": "run flags report tables kernels likelihoods curve streams runs models models.vgp_kmm models.sparse_ep "
        "models.svgp_robustmax models.sgpmc_freeform models.gprn_tensor models.outputs kinds models.review training train compare unseen predicted predict export serve "
        "zoo cite main ."
    },
    {"__main__": ""},
]
FLOOR = {room: number for number, rooms in enumerate(TOWER) for room in rooms}
ORDER = {
    f"{room}.{name}".removesuffix("."): place
    for rooms in TOWER
    for room, names in rooms.items()
    for place, name in enumerate("" if name == "." else name for name in names.split() or ["."])
}
ALONE = {room for rooms in TOWER for room, names in rooms.items() if not names}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"}
MODULES = {name: path for name, path in FILES.items() if path.read_text(encoding="utf-8").strip()}


def _imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level]) if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            if module.split(".")[0] == "gpflow_ext":
                base = module.removeprefix("gpflow_ext").lstrip(".")
                names = (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
                found |= {name if name in FILES else base for name in names}
        elif isinstance(node, ast.Import):
            found |= {
                a.name.removeprefix("gpflow_ext.") for a in node.names if a.name.startswith("gpflow_ext.")
            }
    return found - {_name(path)}


def _room(module: str) -> str:
    return module.split(".")[0]


def _is_below(module: str, imported: str) -> bool:
    own, other = _room(module), _room(imported)
    if own == other:
        return ORDER[imported] < ORDER[module]
    return FLOOR[other] < FLOOR[own]


@pytest.mark.parametrize("module", MODULES)
def test_imports_come_from_below(module: str) -> None:
    assert module in ALONE or module in ORDER, f"{module} has no place in TOWER"
    for imported in _imports(MODULES[module]):
        assert _is_below(module, imported), f"{module} imports {imported}, which does not stand below it"


def test_every_place_is_taken() -> None:
    assert set(ORDER) | ALONE == set(MODULES)


def test_the_rule_sees_what_is_wrong() -> None:
    assert not _is_below("numerics.linalg", "gprn.network")
    assert not _is_below("numerics.linalg", "numerics.grids")
    assert not _is_below("sites.algebra", "sites.model")
    assert not _is_below("kmm.engine", "ep.engine")
    assert not _is_below("sites.model", "fitting")


def test_no_file_is_long() -> None:
    long = {
        name: n
        for name, path in FILES.items()
        if (n := len(path.read_text(encoding="utf-8").splitlines())) > 350
    }
    assert not long


def test_import_is_light() -> None:
    """Where they are installed, GPflow and Keras import matplotlib and scikit-learn themselves."""
    heavy = "names = {'matplotlib', 'sklearn', 'arviz', 'pandas', 'gpflow_ext.sklearn'}; heavy = lambda: names & set(sys.modules)"
    every = "[getattr(gpflow_ext, name) for name in gpflow_ext.__all__]"
    code = f"import sys, gpflow; {heavy}; before = heavy(); import gpflow_ext; {every}; print(sorted(heavy() - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]", out.stderr

"""The models of the zoo: the command that trains each, what it is an example of, and its limits."""

from __future__ import annotations

from typing import NamedTuple

from .zoo_data import FIELD, JURA, WAVES


class Recipe(NamedTuple):
    """How a model of the zoo is made by a command.

    Attributes
    ----------
    command
        What follows ``gpflow-ext train --model``.
    limits
        What the model must not be used for.
    """

    command: str
    limits: str


class Chosen(NamedTuple):
    """How a model of the zoo is made by `gpflow_ext.auto`.

    Attributes
    ----------
    data
        The name of the set.
    seconds
        The budget, more than it takes.
    limits
        What the model must not be used for.
    """

    data: str
    seconds: float
    limits: str


_MEDICAL = "A teaching example: it must not be used to diagnose anybody."
_RADAR = "One radar, one season; labels by the authors of the set."
_PIXELS = (
    "Pixels as in the set, 0 to 1 before scaling: other scans, strokes or crops need a model of their own."
)
_FLIGHTS = "Flights of one country and one period; what causes a delay is not among the inputs."
_WINES = "Three cultivars of one region."
_WAVES = f"--data {WAVES} --target y1 y2 y3 y4 --nodes 2"
_INTENSITY = "The intensity in one plot; outside of it the prior's."
_DRAWN = "Drawn from a network: it says nothing about the world."

MODELS: dict[str, Recipe | Chosen] = {
    "breast_cancer_vgp_kmm": Recipe("vgp-kmm --data breast_cancer --num-inducing 50", _MEDICAL),
    "breast_cancer_gp_laplace": Recipe("gp-laplace --data breast_cancer --inducing 60", _MEDICAL),
    "pima_vgp_kmm_float32": Recipe(
        "vgp-kmm --data pima --num-inducing 60 --float32", f"{_MEDICAL} Zeros stand for missing readings."
    ),
    "thyroid_vgp_kmm": Recipe("vgp-kmm --data new_thyroid --num-inducing 40", _MEDICAL),
    "ionosphere_gp_jaakkola": Recipe("gp-jaakkola --data ionosphere --inducing 60", _RADAR),
    "sonar_gp_taylor": Recipe("gp-taylor --data sonar --inducing 60", "Two objects on one sea floor."),
    "wine_sparse_ep": Recipe("sparse-ep --data wine --inducing 40", _WINES),
    "wine_sgpmc_freeform": Recipe(
        "sgpmc-free-form --data wine --inducing 10 --trials 15 --steps 2000", _WINES
    ),
    "vehicle_svgp_robustmax_float32": Recipe(
        "svgp-robustmax --data vehicle --inducing 60 --steps 1500 --float32",
        "Four vehicles, as silhouettes under one camera.",
    ),
    "vehicle_vgp_kmm_multinomial": Recipe(
        "vgp-kmm --data vehicle --likelihood multinomial-logit --num-inducing 60",
        "Four vehicles, as silhouettes under one camera.",
    ),
    "digits_svgp_robustmax": Recipe(
        "svgp-robustmax --data digits --common-scale --inducing 60 --steps 600", _PIXELS
    ),
    "mnist_svgp_robustmax_float32": Recipe(
        "svgp-robustmax --data mnist --common-scale --inducing 200 --steps 2000 --float32", _PIXELS
    ),
    "mnist_scattering_svgp_robustmax_float32": Recipe(
        "svgp-robustmax --data mnist --raw --float32 --scattering 200 --variance 10 --inducing 250 "
        "--steps 400 --minibatch-size 500 --gamma 0.03 --hold 10",
        _PIXELS,
    ),
    "mnist_odd_even_sparse_ep": Recipe(
        "sparse-ep --data mnist_odd_even --common-scale --inducing 100 --minibatch-size 200 --steps 4000",
        _PIXELS,
    ),
    "airline_sparse_ep": Recipe(
        "sparse-ep --data airline_2008 --task binary --inducing 50 --minibatch-size 200 --steps 4000",
        _FLIGHTS,
    ),
    "stock_vgp_kmm": Recipe(
        "vgp-kmm --data stock_ord5 --num-inducing 60",
        "Levels of one price from those of nine others on the same day: no forecast.",
    ),
    "machine_gp_laplace": Recipe(
        "gp-laplace --data $GPFLOW_EXT_DATA/machine_cpu.csv.gz --target y5_freq --task ordinal --drop prp y10_freq --inducing 40",
        "Computers of the nineteen-eighties.",
    ),
    "scotland_vgp_kmm": Recipe(
        "vgp-kmm --data scotland_lip --num-inducing 30",
        "Counts of districts, to be read with their exposures: nothing about a person.",
    ),
    "finland_sparse_ep": Recipe(
        "sparse-ep --data finland_heart_deaths --inducing 100",
        "Counts of cells of 20 km, to be read with their exposures: nothing about a person.",
    ),
    "coal_sgpmc_freeform": Recipe(
        "sgpmc-free-form --data coal_disasters --inducing 20 --trials 10 --steps 1500",
        "The rate between 1851 and 1962; outside of it the prior's.",
    ),
    "pines_sparse_ep": Recipe(
        "sparse-ep --data $GPFLOW_EXT_DATA/pines.csv.gz --target u v --task events --bins 20 "
        "--drop duplicate x_m y_m diameter_cm height_m --inducing 60",
        _INTENSITY,
    ),
    "pines_vgp_kmm_grid": Recipe(
        "vgp-kmm --data $GPFLOW_EXT_DATA/pines.csv.gz --target u v --task events --bins 40 "
        "--drop duplicate x_m y_m diameter_cm height_m --prior grid",
        f"{_INTENSITY} The data are under the GPL (>= 2), as the R package spatstat.data states.",
    ),
    "coal_vgp_kmm_markov": Recipe(
        "vgp-kmm --data coal_disasters --prior markov --kernel matern52",
        "The rate between 1851 and 1962; outside of it the prior's.",
    ),
    "finland_vgp_kmm_vecchia": Recipe(
        "vgp-kmm --data finland_heart_deaths --prior vecchia --kernel matern32",
        "Counts of cells of 20 km, to be read with their exposures: nothing about a person.",
    ),
    "scotland_vgp_kmm_negative_binomial": Recipe(
        "vgp-kmm --data scotland_lip --num-inducing 30 --likelihood negative-binomial",
        "Counts of districts, to be read with their exposures: nothing about a person.",
    ),
    "diabetes_sgpr": Recipe("sgpr --data diabetes --inducing 50", _MEDICAL),
    "boston_svgp_student_t": Recipe(
        "svgp-student-t --data boston_housing --inducing 60",
        "Prices of 1970; one column is an ethically questionable variable: for numerical comparison only.",
    ),
    "kin40k_svgp": Recipe(
        "svgp --data kin40k --ard --inducing 500 --minibatch-size 500 --steps 1500 --float32",
        "A simulated robot arm: inputs outside of its ranges are not covered.",
    ),
    "waves_gprn_tensor": Recipe(f"gprn-tensor {_WAVES}", _DRAWN),
    "waves_gprn_tensor_posterior": Recipe(
        f"gprn-tensor {_WAVES} --posterior tensor --output-shape 2 2 --steps 8000", _DRAWN
    ),
    "diabetes_average": Chosen("diabetes", 600.0, _MEDICAL),
}

LARGER = {
    "field_gprn_tensor_float32": Recipe(f"gprn-tensor --data {FIELD} --nodes 2 --float32", _DRAWN),
    "jura_gprn_tensor": Recipe(
        f"gprn-tensor --data {JURA} --target log_Cd log_Ni log_Zn --missing keep --nodes 2",
        "Soil of one region, sampled once: between the sites, not beyond them.",
    ),
}
"""Models of more bytes than the zoo holds; they go into an archive."""

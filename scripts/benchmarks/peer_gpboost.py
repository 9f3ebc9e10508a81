"""GPBoost's Vecchia approximation, timed by the interpreter of an environment that has it.

    pip install gpboost
    python peer_gpboost.py DATA.npz RESULTS.npz

The first file holds X [N, 2], Y [N, 1], new places [R, 2], the kind of the data, neighbours, the number of inducing
points beside them, length scale and whether to fit; the second gets CPU seconds, the log evidence, and means and variances of the latent function.
"""

import sys
import time
from typing import Any

import gpboost
import numpy as np


def main() -> None:
    """Measure and write."""
    data = np.load(sys.argv[1])
    y, found = data["Y"][:, 0], {}
    prior: dict[str, Any] = {"gp_approx": "vecchia", "matrix_inversion_method": "cholesky"}
    if data["inducing"]:  # which it has by iterative methods alone
        prior = {"gp_approx": "full_scale_vecchia", "num_ind_points": int(data["inducing"])}

    def build() -> Any:
        return gpboost.GPModel(
            gp_coords=data["X"],
            cov_function="matern",
            cov_fct_shape=1.5,
            likelihood="poisson" if data["kind"] == "counts" else "bernoulli_logit",
            num_neighbors=int(data["neighbours"]),
            vecchia_ordering="random",
            **prior,
            seed=1,
            num_parallel_threads=1,
        )

    def timed(name: str, call: Any) -> Any:
        begin = time.process_time()
        result = call()
        found[name] = time.process_time() - begin
        return result

    pars = np.array([1.0, float(data["scale"])])
    model = timed("build", build)
    found["objective"] = -timed("evidence", lambda: model.neg_log_likelihood(cov_pars=pars, y=y))
    moments = timed(
        "predict",
        lambda: model.predict(
            gp_coords_pred=data["new"], cov_pars=pars, y=y, predict_var=True, predict_response=False
        ),
    )
    found["mean"], found["var"] = moments["mu"], moments["var"]
    if data["fit"]:
        model = build()
        start = np.array([1.0, 2.0 * float(data["scale"])])
        timed("fit", lambda: model.fit(y=y, params={"init_cov_pars": start}))
        found["fitted"] = -model.get_current_neg_log_likelihood()
    np.savez(sys.argv[2], **found)


main()

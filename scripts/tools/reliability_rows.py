"""What must hold, and the tests that show it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A property of the package."""

    what: str
    against: str
    target: str
    tests: tuple[str, ...]  # node identifiers of pytest, under tests/
    remark: str = ""  # where the target is not met, or met in another way


ROWS = (
    Row(
        "Free-form sampling with Z = X of a Poisson regression, 4 chains",
        "10,000 published draws",
        "every |z| ≤ 4, R-hat < 1.01, ESS ≥ 400, no divergence, ≤ 150,000 gradients",
        ("test_sgpmc_freeform.py::test_reference_draws_of_a_poisson_posterior",),
    ),
    Row(
        "A log-Gaussian Cox process with exposures",
        "Stan's moments",
        "|z| ≤ 4 of both hyperparameters; sorted log intensities within 0.01; ratio of deviations 0.9-1.1",
        ("test_reference_posteriors.py",),
        "The short run must be within 0.03 in the log intensities, the long one within the target.",
    ),
    Row(
        "Simulation-based calibration: regression, binary, counts, classes",
        "the prior",
        "ranks of every parameter inside the simultaneous 99 % band",
        (
            "test_calibration.py::test_ranks_are_uniform",
            "test_calibration.py::test_the_band_holds_uniform_ranks",
        ),
        "With fewer inducing points than data, one can draw data from the model of the free-form density only if the "
        "rank of the kernel is no higher than their number. "
        "Hence M = N = 8 under a squared exponential kernel, and M = 8 for N = 20 "
        "under a linear one.",
    ),
    Row(
        "Negative control: a Jacobian left out or doubled, the density to a power",
        "the two tests of calibration",
        "both fail",
        (
            "test_calibration.py::test_ranks_of_a_wrong_density_are_not",
            "test_calibration.py::test_geweke_finds_a_wrong_density",
        ),
    ),
    Row(
        "Geweke's joint test; the prior comes back without data",
        "closed forms",
        "≥ 20 functions with |z| ≤ 4; Kolmogorov-Smirnov p > 1e-4",
        (
            "test_calibration.py::test_geweke",
            "test_sgpmc_freeform.py::test_without_data_the_prior_comes_back",
        ),
    ),
    Row(
        "Leapfrog: reversible, volume preserving, of second order",
        "itself",
        "1e-10; log determinant ≤ 1e-8; slope 2.0 ± 0.2",
        (
            "test_mcmc.py::test_leapfrog_is_reversible_and_of_second_order",
            "test_mcmc.py::test_leapfrog_preserves_volume",
        ),
    ),
    Row(
        "Gradients of every objective",
        "central differences, sites refitted where they move",
        "1e-6",
        (
            "test_models.py::test_loss_gradient_equals_central_differences",
            "test_equivalence.py::test_dual_gradient_is_that_of_the_optimised_bound",
            "test_equivalence.py::test_envelope_has_the_gradient_of_the_bound_at_the_fixed_point",
            "test_quadratic.py::test_gradient_is_that_of_the_optimised_objective",
            "test_sparse_ep.py::test_the_gradient_is_that_of_the_refitted_evidence",
            "test_sparse_ep_multiclass.py::test_the_gradient_is_that_of_the_refitted_evidence",
            "test_sgpmc_freeform.py::test_gradients_are_central_differences",
            "test_gprn_tensor.py::test_gradients_are_central_differences",
        ),
    ),
    Row(
        "Every bound below log Z, every coordinate sweep non-decreasing",
        "quadrature; random problems",
        "no violation beyond 1e-9",
        (
            "test_random_problems.py",
            "test_bounds.py::test_upper_bound_within_its_stated_gap",
            "test_equivalence.py::test_bounds_bracket_the_exact_elbo",
            "test_coordinate_ascent.py::test_parallel_step_never_lowers_the_bound_and_reaches_the_fixed_point",
            "test_coordinate_ascent.py::test_algorithm1_never_lowers_the_bound_and_meets_the_parallel_optimum",
            "test_quadratic.py::test_jaakkolas_bound_is_below_the_exact_elbo_in_500_random_cases",
            "test_network.py::test_alternating_never_lowers_the_bound",
        ),
    ),
    Row(
        "Expectation propagation: M = N is the full method; evidence; order and batches; shards",
        "a NumPy twin, orthant probabilities, one machine",
        "1e-8; 0.01 nat; 1e-4; 1e-10; 1e-10",
        (
            "test_sparse_ep.py::test_inducing_points_at_the_data_give_full_expectation_propagation",
            "test_sparse_ep.py::test_the_evidence_is_that_of_orthants",
            "test_sparse_ep.py::test_messages_of_shards_add_up",
            "test_stochastic_ep.py::test_the_fixed_point_is_that_of_batch_mode",
            "test_stochastic_ep.py::test_a_minibatch_of_all_data_is_a_sweep_of_batch_mode",
            "test_distribute.py::test_three_devices_go_on_as_one_would",
        ),
    ),
    Row(
        "Laplace's approximation",
        "scikit-learn's GaussianProcessClassifier",
        "1e-6",
        ("test_quadratic.py::test_laplace_is_scikit_learns",),
    ),
    Row(
        "The sparse model with Z = X, GPflow's VGP and VGPKMM",
        "each other",
        "1e-6 relative",
        (
            "test_equivalence.py::test_optimum_is_that_of_gpflow_vgp",
            "test_equivalence.py::test_all_data_as_inducing_points_give_the_dense_model",
            "test_equivalence.py::test_whitened_parameters_reproduce_bound_and_prediction_in_gpflow",
        ),
    ),
    Row(
        "Class probabilities",
        "dense quadrature",
        "rows sum to 1 within 1e-6; logarithms right to |f| = 40",
        (
            "test_robust_max.py::test_the_probability_is_that_of_dense_quadrature",
            "test_robust_max.py::test_probabilities_sum_to_one_before_normalising",
            "test_binary_likelihoods.py::test_log_prob_is_stable",
            "test_categorical.py::test_log_prob_is_stable",
        ),
    ),
    Row(
        "Bad input",
        "-",
        "its named error, or the right answer",
        (
            "test_bad_input.py",
            "test_models.py::test_wrong_data_is_refused_at_the_door",
            "test_datasets.py::test_a_broken_file_or_argument_is_named",
            "test_scripts.py::test_a_wrong_call_ends_with_one_clear_message",
            "test_predict_script.py::test_a_wrong_file_is_told_where",
            "test_serve.py::test_a_wrong_request_is_told_why",
        ),
    ),
    Row(
        "Conditioning: twins, gaps of 1e-9, one datum, one class, 500 columns, units, variances",
        "the standardised problem",
        "finite, equal to 1e-6, or a warning",
        ("test_conditioning.py", "test_sparse_ep_fit.py::test_hard_problems_converge_to_finite_predictions"),
    ),
    Row(
        "Single precision",
        "double precision",
        "error within 0.2 points, NLPD within 0.01 for M ≤ 200",
        ("test_precision.py::test_single_precision_predicts_as_double",),
        remark="For sampled models, only on the test rows whose class its 1,200 draws can decide.",
    ),
    Row(
        "The same seed twice; with XLA and without",
        "each other",
        "identical; 1e-8",
        (
            "test_precision.py::test_the_same_seed_gives_the_same_bits",
            "test_precision.py::test_xla_trains_the_same_model",
            "test_precision.py::test_xla_samples_the_same_density",
        ),
        remark="XLA draws other random numbers: for a sampled model the density and its gradient are compared.",
    ),
    Row(
        "Resuming: Adam, natural gradients, EP sites, chains",
        "the uninterrupted run",
        "difference exactly 0",
        (
            "test_checkpoint.py::test_resume_is_exact",
            "test_fit.py::test_kmm_resumes_exactly",
            "test_sparse_ep_fit.py::test_training_resumes_exactly",
            "test_stochastic_ep.py::test_training_resumes_exactly_in_mid_epoch",
            "test_svgp_robustmax.py::test_minibatches_raise_the_bound_and_resume_exactly",
            "test_sgpmc_freeform.py::test_a_resumed_run_has_the_same_draws_bit_by_bit",
            "test_gprn_tensor.py::test_training_raises_the_bound_and_resumes_exactly",
            "test_quadratic.py::test_resumes_exactly",
            "test_review.py::test_resumes_exactly",
        ),
    ),
    Row(
        "Killed with SIGKILL while it saves a checkpoint or exports",
        "-",
        "a consistent step or version each time, the old one always loads, no litter",
        (
            "test_checkpoint.py::test_killed_while_saving",
            "test_checkpoint.py::test_killed_while_saving_a_hundred_times",
            "test_export.py::test_killed_while_exporting",
            "test_export.py::test_killed_while_exporting_a_hundred_times",
        ),
    ),
    Row(
        "A checkpoint of another model: kernel, whitening, transform, M, likelihood, data, dtype",
        "-",
        "all refused, both values named",
        (
            "test_checkpoint.py::test_another_model_is_refused_with_both_values_and_untouched",
            "test_checkpoint.py::test_other_data_are_refused",
        ),
    ),
    Row(
        "An exported model in a process with TensorFlow alone; 0, 1, 7, 1000 rows",
        "the live model",
        "1e-12; wrong widths and dtypes refused",
        (
            "test_export.py::test_agrees_with_the_live_model",
            "test_export.py::test_tensorflow_alone_loads_predicts_and_verifies",
            "test_export.py::test_tensorflow_rejects_a_wrong_width_or_dtype",
        ),
    ),
    Row(
        "An exported model from C, 8 threads",
        "Python",
        "the same bits",
        ("test_zoo.py::test_the_c_loader_returns_the_same_bits_from_eight_threads",),
    ),
    Row(
        "The portable profile in ONNX Runtime",
        "the live model",
        "1e-7",
        ("test_profiles.py::test_portable_in_onnx_runtime",),
    ),
    Row(
        "Safety of exported models",
        "a list of operations, hashes",
        "nothing outside them; no absolute path; no pickle",
        (
            "test_export.py::test_tampered_files_are_refused_by_name",
            "test_export.py::test_a_model_that_does_more_than_compute_is_not_exported",
            "test_export.py::test_no_absolute_path_in_any_file",
            "test_safety.py",
        ),
    ),
    Row(
        "A worker of a data-parallel run killed with SIGKILL",
        "one machine",
        "a clear error; the restart loses nothing",
        (
            "test_distribute.py::test_a_killed_worker_ends_the_run_which_then_resumes",
            "test_distribute.py::test_a_killed_chief_ends_the_run_which_then_resumes",
        ),
    ),
    Row(
        "Hostile models: an operation that touches files, or holds what outlives a call, behind every root; "
        "every part of the form edited; links, FIFOs, bombs; random changes of a byte",
        "files before and after; Python, TensorFlow 1 and C, which run 13 of them in a watched folder",
        "at least 100 models, none accepted, nothing written; every unedited export accepted",
        ("test_hostile_graphs.py", "test_hostile_files.py", "test_hostile_loaders.py"),
        "Each passed test of an operation, an edit, a file, an index or an example is a hostile model that was "
        "refused. If a byte and its hash are changed together, the result may be a valid model with another number or "
        "name: such a model is accepted, and only computes.",
    ),
    Row(
        "The manifest: each value edited, each key dropped or mistyped, random changes of a byte",
        "its hash of itself, a strict schema, the graph; a signature",
        "every change seen; malformed: a ValueError that names the key",
        (
            "test_manifests.py",
            "test_hostile_graphs.py::test_every_random_change_is_seen",
        ),
    ),
    Row(
        "Several exports to one path at once",
        "-",
        "each takes a version, or says why not",
        (
            "test_export.py::test_exports_to_one_path_at_once_each_take_a_version",
            "test_export.py::test_without_locks_the_one_that_is_too_late_says_so",
        ),
    ),
    Row(
        "Any one write, rename or `fsync` of a checkpoint or an export fails; files may not grow; SIGINT, SIGTERM",
        "the state before; the same run without",
        "the last good state is read; a sentence names the folder and what is left; a signal saves a checkpoint, from "
        "which the run ends the same",
        ("test_faults.py",),
        "Failed writes are simulated in the calls that Python makes, and inside TensorFlow by a limit on the size of "
        "files.",
    ),
    Row(
        "Requests that are wrong, huge, slow or too many; a model that is slow or fails; SIGTERM while one runs",
        "the exported model in this process",
        "right answers; else 4xx or 5xx with ten reasons at most; no traceback; the others go on",
        ("test_serve.py",),
    ),
    Row(
        "A served call of many rows",
        "the live model; the memory of a call of few",
        "equal to 1e-12; 60 MB more at ten times the rows",
        (
            "test_export.py::test_rows_of_several_blocks_agree_with_the_live_model",
            "test_export.py::test_memory_does_not_grow_with_the_rows",
        ),
    ),
    Row(
        "Random sequences of build, fit, predict, replace data, sample, export, save and load; data and hyperparameters from "
        "1e-12 to 1e12, duplicates, constants, one class, one row",
        "the live model; itself",
        "an error in words, a warning, or finite numbers; served = live to 1e-6, restored = saved",
        ("test_any_sequence.py",),
    ),
    Row(
        "Likelihoods at logits to 1e4, variances 1e-12 to 1e12, counts to 1e9",
        "mpmath, 30 digits",
        "1e-10, for the probit's expectation the error that it states",
        ("test_extremes.py",),
    ),
)

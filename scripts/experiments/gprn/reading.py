"""What the tables of the experiments say."""

from __future__ import annotations

READING = {
    "heat": (
        "A simulator without noise: a length scale for each input and a low limit on the noise (here 1e-8) matter most. "
        "Independent GPs have both. So have networks with one node: their errors are the same, their NLPD is above by "
        "0.04 to 0.3. It was above by two nats before the length scales of k_f and the nugget climbed alone: they are "
        "worth some hundred nats of 1.7 million, and L-BFGS on everything settled before it had moved them. With more "
        "nodes the bound is far higher, since it counts 4,096 outputs as that many independent pieces of evidence, but "
        "the predictions are worse. A second node has values near 1e-7 and weights near 500, of which a nugget of 1e-8, "
        "the least here, makes deviations 50 times too wide. The tensor posterior with two nodes and one covariance over "
        "the rows for both may end `NON_FINITE`, on one split far from the optimum. With four the length scales of k_f "
        "run away on one of three splits, and new inputs are not predicted at all; `fit` says so. On held-out rows one "
        "node is chosen on each split. The mean field and the mixture divide by the noise: on one of three splits both "
        "broke down, as their means show."
    ),
    "generated": (
        "The start by moments finds the network that the data were drawn from, its length scales and noise included, and "
        "with its two nodes predicts better than all other methods; from independent regressions alone the ascent "
        "stayed near these. The tensor posterior, trained until it settles, has a higher bound than the mean field on "
        "every draw, and predicts better; with a covariance over the rows for each node its bound is higher by 290 to 740 on each, and its predictions are the "
        "same to 0.002 in nRMSE and 0.01 in NLPD. The mixture of isotropic components had not converged when its seconds were over."
    ),
    "arabidopsis": (
        "With two nodes all networks have smaller errors than independent GPs, and about those of linear "
        "coregionalisation. With four that share a kernel the bound is higher, and so are the errors. With a kernel and a "
        "nugget for each node the bound is higher still, and the errors are the smallest of all. The bound picks this "
        "network. It predicts better than independent GPs and coregionalisation on average, and as well as PCA-GP, which "
        "has a kernel for each component. With a covariance over the rows for each node the tensor posterior has a bound "
        "above that of the mean field on every split. Three held-out rows of 18 are too few to choose the number of nodes "
        "well."
    ),
    "germany": (
        "The readings of other stations on the same day are the most informative: a regression on them, one for each "
        "station, has the smallest errors. The network sees them only through one or two nodes, and so uses less of them; "
        "with two its errors are nearly as small, its NLPD is not. Both posteriors reach bounds that Adam does not reach "
        "in its seconds."
    ),
    "jura": (
        "Most of the information about cadmium is in the other metals at the same place. The network sees them "
        "through its nodes: its errors are far smaller than those of independent GPs, and a little larger than those "
        "of a regression on the metals. A kernel and a nugget for each node raise the bound, and leave the error in "
        "mg/kg where it was, above 0.40. Below it is only the tensor posterior with one node, which the bound does not pick: "
        "two nodes with a covariance over the rows for each have a higher bound, and larger errors. The rows with node kernels use `predict_missing`, which conditions on the "
        "metals measured at a place; the row with one kernel predicts as at new places."
    ),
    "sarcos": (
        "Seven outputs say little about common nodes: the networks are about as good as independent GPs. With a "
        "covariance over the rows for each node the tensor posterior has a higher bound than the mean field, with one for all and two nodes a far lower "
        "one. The mean field has the smallest errors here. The rows of the collapsed posterior were measured before outputs had "
        "scales of their own. Earlier the default grid gave the tensor posterior an eighth output without targets, which lowered "
        "its bound below that of the mean field. The seconds of the tensor posterior without Adam are those of a busy machine."
    ),
    "field": (
        "The fit, whose seconds these are, sees the million outputs through one matrix of inner products, and its steps cost what they do for a thousand outputs (see below). Most of the seconds of "
        "the others go into passes over all pixels. The "
        "evidence counts neighbouring pixels as independent."
    ),
    "stationary": (
        "There is nothing to gain here, and the collapsed posterior loses nothing: superfluous nodes fade away. The "
        "tensor posterior of the paper has one covariance over the inputs for all nodes, and one for all weights, so "
        "that it cannot let one node fade and keep the other. "
        "Its bound is a thousand below the mean field's here, and its NLPD a little above that of independent GPs. The mean field is not "
        "within that family. With a covariance for each node it is, and the bound is above the mean field's on every draw, with the "
        "predictions of independent GPs."
    ),
}

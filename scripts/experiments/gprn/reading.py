"""What the tables of the experiments say."""

from __future__ import annotations

READING = {
    "heat": (
        "A simulator without noise: a length scale for each input and a low limit on the noise (here 1e-8) matter "
        "most. Independent GPs have both, and win, by far in the NLPD. The targets are linear combinations of about "
        "ten fields, but the network treats 4,096 outputs as that many independent pieces of evidence about its "
        "nodes. This is a likely reason for its NLPD, since errors of the nodes affect all outputs. With four nodes "
        "the start by moments reaches a far higher bound, but larger errors; `fit(moment_start=False)` leaves it out. "
        "The mean field and the mixture divide by the noise: on one of three splits both broke down, as their means "
        "show. The tensor posterior breaks down too. Its factors have diagonals of at least 2e-6, which is too much here: "
        "already with one node its bound is far below that of the collapsed posterior. "
        "With more nodes their length scales run away, and new inputs are not predicted at all: with two on two of three "
        "splits, with four on all, and if each node has a covariance over the rows with four alone. Where the optimum "
        "itself is not finite, `fit` ends `NON_FINITE`."
    ),
    "generated": (
        "The start by moments finds the network that the data were drawn from, its length scales and noise included, and "
        "with its two nodes predicts better than all other methods; from independent regressions alone the ascent "
        "stayed near these. The tensor posterior, trained until it settles, has a higher bound than the mean field on "
        "every draw, and predicts better; with a covariance over the rows for each node its bound is higher by 290 to 740 on each, and its predictions are the "
        "same to 0.002 in nRMSE and 0.01 in NLPD. The mixture of isotropic components had not converged when its seconds were over."
    ),
    "arabidopsis": (
        "The higher bounds of more nodes do not mean lower errors: with four nodes those of the collapsed posterior are no "
        "lower than those by Adam, unless the nodes are optimised jointly. With two nodes the tensor posterior has "
        "smaller errors than independent GPs and linear coregionalisation; with four it has larger ones, at a higher "
        "bound. With a covariance over the rows for each node four nodes have far smaller ones, at a bound above that of the "
        "mean field on every split; its NLPD is lower on all three, its nRMSE on one. The bound picks four nodes, and the "
        "collapsed posterior or this one: their NLPD is below those of independent GPs and of coregionalisation, their nRMSE "
        "below neither. If the nRMSE matters, choose the number of nodes on held-out targets. PCA-GP, with a kernel for each "
        "component, has the smallest errors."
    ),
    "germany": (
        "The readings of other stations on the same day are the most informative: a regression on them, one for each "
        "station, has the smallest errors. The network sees them only through one or two nodes, and so uses less of "
        "them. The joint fit has a scale for each station; the rows without it were measured before these existed. "
        "Both posteriors reach bounds that Adam does not reach in its seconds, with errors a little larger than its "
        "own; of the tensor posteriors, a covariance over the rows for each node and two nodes come nearest."
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

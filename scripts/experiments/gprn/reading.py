"""What the tables of the experiments say."""

from __future__ import annotations

READING = {
    "heat": (
        "A simulator without noise: what decides is one length scale for each input and how low the noise may go (here "
        "1e-8), which independent GPs use as well; they win, and by far in the NLPD. The targets are linear combinations "
        "of about ten fields, but the network takes 4,096 outputs for as many independent pieces of evidence about its "
        "nodes: a likely reason for the NLPD, since errors of the nodes multiply all outputs. With four nodes the start by "
        "moments reaches a far higher bound and larger errors; `fit(moment_start=False)` does without. The mean field and the "
        "mixture divide by the noise: on one of three splits both broke down, which their means show."
    ),
    "generated": (
        "The start by moments finds the network that the data were drawn from, its length scales and noise included, and "
        "with its two nodes predicts better than all other methods; from independent regressions alone the ascent stayed "
        "near these. The tensor posterior, trained until it settles, is above the mean field in bound on every draw, and predicts "
        "better; with a covariance over the rows for each node its bound is higher by 290 to 740 on each, and its predictions are the "
        "same to 0.002 in nRMSE and 0.01 in NLPD. The mixture of isotropic components had not converged when its seconds were over."
    ),
    "arabidopsis": (
        "The higher bounds of more nodes do not mean lower errors: with four nodes those of the collapsed posterior are no "
        "lower than those by Adam unless its nodes are climbed too. The tensor posterior errs less than independent GPs and linear "
        "coregionalisation with two nodes, and more with four, at a higher bound. The bound picks four nodes of the collapsed "
        "posterior: of these the NLPD is below that of independent GPs and of coregionalisation, and the nRMSE above both. Where that "
        "matters choose the number of nodes on targets that are held out. PCA-GP, with a kernel for each component, errs least."
    ),
    "germany": (
        "What other stations read on the same day says most: a regression on them, one for each station, errs least. The "
        "network sees them through one or two nodes only, and so pools less. The joint climb has scales of each station's own, the "
        "rows without it were measured before there were such. Both posteriors settle at bounds that Adam does not reach in its "
        "seconds, and err a little more than it does there."
    ),
    "jura": (
        "What the other metals say of cadmium at the place itself is most of what there is: the network, which sees them through its "
        "nodes, errs far less than independent GPs, and a little more than a regression on them. A kernel and a nugget for each node "
        "raise the bound, and leave the error in mg/kg where it was, above 0.40. These rows are predicted at the nodes of the places "
        "themselves, by `predict_missing`, the row of one kernel as at new places."
    ),
    "sarcos": (
        "Seven outputs say little about common nodes: the networks are about as good as independent GPs, and a second node "
        "costs more of the bound than it explains. The mean field errs least here. The rows of the collapsed posterior were "
        "measured before outputs had scales of their own."
    ),
    "field": (
        "The fit, whose seconds these are, sees the million outputs through one matrix of inner products, and its steps cost what they do for a thousand outputs (see below). Most of the seconds of "
        "the others go into passes over all pixels. The "
        "evidence counts neighbouring pixels as independent."
    ),
    "stationary": (
        "Nothing to gain, and nothing lost by the collapsed posterior: further nodes fade away. The tensor posterior of the paper "
        "has one covariance over the inputs for all nodes, and one for all weights, which cannot let one node fade and hold the other. "
        "Its bound is a thousand below the mean field's here, and its NLPD a little above that of independent GPs. The mean field is not "
        "within that family. With a covariance for each node it is, and the bound is above the mean field's on every draw, with the "
        "predictions of independent GPs."
    ),
}

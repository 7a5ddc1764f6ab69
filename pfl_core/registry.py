"""Names of methods, metrics and partitions, and the modules that define the methods. No method is imported here.

A new method needs a line here.
"""

METHODS = {  # method -> module
    "ditto": "pfl_core.algorithms.ditto",
    "fedap": "pfl_core.algorithms.fedap",
    "fedavg": "pfl_core.algorithms.fedavg",
    "fedavg_ft": "pfl_core.algorithms.fedavg",
    "fedbabu": "pfl_core.algorithms.partial",
    "fedbn": "pfl_core.algorithms.fedbn",
    "fedem": "pfl_core.algorithms.fedem",
    "fedmask": "pfl_core.algorithms.fedmask",
    "fedmd": "pfl_core.algorithms.fedmd",
    "fednova": "pfl_core.algorithms.fednova",
    "fedpac": "pfl_core.algorithms.fedpac",
    "fedper": "pfl_core.algorithms.partial",
    "fedpews": "pfl_core.algorithms.fedpews.method",
    "fedpews_fixed": "pfl_core.algorithms.fedpews.fixed",
    "fedprox": "pfl_core.algorithms.fedprox",
    "fedrep": "pfl_core.algorithms.partial",
    "fedselect": "pfl_core.algorithms.fedselect.method",
    "fedselect_gradltn": "pfl_core.algorithms.fedselect.gradltn",
    "heterofl": "pfl_core.algorithms.heterofl",
    "lg_fedavg": "pfl_core.algorithms.partial",
    "local": "pfl_core.algorithms.local",
    "lotteryfl": "pfl_core.algorithms.lotteryfl",
    "moon": "pfl_core.algorithms.moon",
    "perfedavg": "pfl_core.algorithms.perfedavg",
    "pfedgate": "pfl_core.algorithms.pfedgate.method",
    "pfedme": "pfl_core.algorithms.pfedme",
    "scaffold": "pfl_core.algorithms.scaffold",
    "star_pfl": "pfl_core.algorithms.star_pfl.method",
}
INSTRUMENTS = {  # algorithms that measure something and are not methods -> module
    "star_pfl_likeness": "pfl_core.algorithms.star_pfl.likeness",
}
METRICS = {  # scores of each client beside its accuracy -> their meaning
    "f1": "macro F1",
    "auc": "area under the ROC curve, each class against the rest",
    "ece": "expected calibration error",
}
PARTITIONS = (
    "iid",
    "shards",
    "dirichlet",
    "paired_dirichlet",
    "by_source",
    "by_class",
    "pathological",
    "paired_sample",
    "label_groups",
    "csv",
)

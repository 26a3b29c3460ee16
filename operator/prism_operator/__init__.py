"""PRISM's Kubernetes operator: turns PrismConfigs into the settings documents that predictors read.

Two flows. What the cluster holds comes in: `reflector` lists and watches through `api`, `objects` keeps the few fields
that matter, `cache` holds them. What should be goes out: `select` says which config is for which service, `rollout` how
far a change has got, `documents` which document each service reads, `manifests` the objects that carry them, `status`
what the user is told; `reconcile` compares and writes. `predictors` asks the pods what they obey. All but `api`,
`reflector`, `predictors`, `leader` and the servers are values in, values out, with the time as an argument.
"""

"""PRISM's Kubernetes operator: reconciles PrismConfigs into settings documents. Not part of this version yet."""

"""The whole of it as a user has it on day one; cluster, chart and predictor come from `realcluster/fixtures.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from realcluster.cluster import Cluster
from realcluster.images import Images
from realcluster.jaeger import Jaeger
from realcluster.predictors import Predictor
from realcluster.traffic import Traffic


@pytest.fixture(scope="session")
def jaeger(cluster: Cluster) -> Jaeger:
    """A running Jaeger, where the chart's OTLP endpoint points."""
    cluster.node.import_image(Images().jaeger().archive)
    made = Jaeger(cluster)
    made.start()
    return made


@pytest.fixture
def traffic(predictor: Predictor) -> Iterator[Traffic]:
    """Requests to the predictor, with the OpenAI client."""
    made = Traffic(predictor.url, model=predictor.name)
    yield made
    made.close()

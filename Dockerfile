# The two images of PRISM. Targets: `predictor` (the inference service) and `operator`.
#
#   GPU:  docker build --target predictor -t prism-predictor .
#   CPU:  docker build --target predictor -t prism-predictor:cpu \
#           --build-arg PREDICTOR_BASE=docker.io/library/python:3.11-slim-bookworm \
#           --build-arg PREDICTOR_REQUIREMENTS=requirements/cpu.txt .
#         with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu for PyTorch without CUDA (5 GB less)
#   operator:  docker build --target operator -t prism-operator .
#
# PREDICTOR_REQUIREMENTS= (empty) leaves vLLM and all other libraries out; whoever runs that image mounts them.
ARG PYTHON_BASE=docker.io/library/python:3.11-slim-bookworm
ARG PREDICTOR_BASE=docker.io/vllm/vllm-openai:v0.28.0

# The project's wheel. Its build tools come from the lock, with their hashes, and stay in this stage.
FROM ${PYTHON_BASE} AS wheel
WORKDIR /build
COPY requirements/dev.txt requirements/
RUN awk '/^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/, !/\\$/' requirements/dev.txt > build.txt \
 && python3 -m venv /tools \
 && /tools/bin/python -m pip install --no-cache-dir --require-hashes -r build.txt
COPY pyproject.toml README.md CHANGELOG.md LICENSE NOTICE ./
COPY service service
COPY operator operator
RUN /tools/bin/python -m hatchling build -t wheel -d /wheels

FROM ${PYTHON_BASE} AS operator-environment
COPY .ci/image-environment requirements/operator.txt /build/
RUN sh /build/image-environment /build/operator.txt
COPY --from=wheel /wheels /wheels
RUN sh /build/image-environment /wheels/*.whl

FROM ${PREDICTOR_BASE} AS predictor-environment
ARG PREDICTOR_REQUIREMENTS=requirements/gpu.txt
ARG TORCH_INDEX=
COPY .ci/image-environment /build/
COPY requirements /build/requirements
RUN TORCH_INDEX=${TORCH_INDEX} sh /build/image-environment ${PREDICTOR_REQUIREMENTS:+/build/${PREDICTOR_REQUIREMENTS}}
COPY --from=wheel /wheels /wheels
RUN sh /build/image-environment /wheels/*.whl

FROM ${PYTHON_BASE} AS operator
LABEL org.opencontainers.image.title="prism-operator" \
      org.opencontainers.image.description="Carries PrismConfigs to PRISM's predictors and reports what they obey" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-environment /opt/prism /opt/prism
ENV PATH=/opt/prism/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 8081
ENTRYPOINT ["/opt/prism/bin/python", "-m", "prism_operator"]
CMD []

FROM ${PREDICTOR_BASE} AS predictor
LABEL org.opencontainers.image.title="prism-predictor" \
      org.opencontainers.image.description="A KServe predictor that embeds vLLM and decides admission order and KV retention together" \
      org.opencontainers.image.licenses="Apache-2.0"
# vLLM's CPU build links libnuma, which the official GPU image has. Debian keeps one version of it in each release.
# hadolint ignore=DL3008
RUN if [ ! -e /usr/lib/x86_64-linux-gnu/libnuma.so.1 ]; then \
      apt-get update && apt-get install -y --no-install-recommends libnuma1 libstdc++6 && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=predictor-environment /opt/prism /opt/prism
ENV PATH=/opt/prism/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 8090
ENTRYPOINT ["/opt/prism/bin/python", "-m", "prism", "serve"]
CMD []

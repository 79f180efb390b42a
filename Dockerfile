# Images of Sluice: `gateway` (no torch; also for setup, Celery and commands), `worker` (CPU) and `worker-cuda`.
#   docker build --target gateway -t sluice-gateway .
# Every process runs as user 10001, writes to /var/lib/sluice and /tmp alone, and works with a read-only root.
# What is not ours comes by digest and hash (`make lock`), but for Debian's packages and, in `worker-cuda`, torch.

# Debian 13: its PostgreSQL client is version 17, as docker-compose.yml's server (backup needs the same or a newer one).
FROM python:3.12-slim-trixie@sha256:a6e34c598f2467ed0e9a8d349809fcd8b5c603269512df273a0bb1784edc11b1 AS base

FROM base AS system
RUN apt-get update \
    && apt-get install -y --no-install-recommends postgresql-client \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/lib/sluice --shell /usr/sbin/nologin sluice \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/sluice /run/sluice/secrets /var/backups/sluice \
    && install -d -o 10001 -g 10001 -m 0755 /run/sluice/database

FROM base AS gateway-packages
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes -r constraints/gateway.txt \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM gateway-packages AS engine-packages
RUN /opt/venv/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes \
    -r constraints/gateway.txt -r constraints/engine.txt

FROM engine-packages AS worker-packages
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/venv/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes --no-deps \
    --index-url "${TORCH_INDEX}" -r constraints/torch.txt

# CUDA's libraries come with torch's packages; the host has the driver and NVIDIA's container toolkit. No hashes: which
# build, and which libraries with it, is for the driver to say, by the index.
FROM engine-packages AS worker-cuda-packages
ARG TORCH_CUDA_INDEX=https://download.pytorch.org/whl/cu128
RUN /opt/venv/bin/pip install --no-cache-dir --index-url "${TORCH_CUDA_INDEX}" 'torch>=2.11,<2.14'

FROM system AS code
WORKDIR /app
COPY manage.py LICENSE SECURITY.md UPGRADING.md CONTRIBUTING.md CHANGELOG.md ./
COPY base base
COPY tenancy tenancy
COPY fleet fleet
COPY gateway gateway
COPY control control
COPY operation operation
COPY billing billing
COPY routing routing
COPY inference inference
COPY desk desk
COPY templates templates
COPY static static
COPY docs docs
COPY examples examples
COPY deploy/docker deploy/docker
RUN python -m compileall -q base tenancy fleet gateway control operation billing routing inference desk
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 SLUICE_HOME=/var/lib/sluice \
    SLUICE_RUNTIME_DIR=/tmp/sluice
USER 10001:10001
ENTRYPOINT ["python", "manage.py"]

FROM code AS worker
# The kernels for the CPU are built on the machine that runs them, for its processor.
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=worker-packages /opt/venv /opt/venv
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s CMD ["python", "deploy/docker/healthy.py", "worker"]
CMD ["worker"]

FROM code AS worker-cuda
# Triton compiles what launches its kernels with gcc, on the machine that runs them.
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=worker-cuda-packages /opt/venv /opt/venv
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s CMD ["python", "deploy/docker/healthy.py", "worker"]
CMD ["worker"]

FROM code AS gateway
COPY --from=gateway-packages /opt/venv /opt/venv
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "deploy/docker/healthy.py", "gateway"]
CMD ["gateway", "--host", "0.0.0.0", "--port", "8000"]

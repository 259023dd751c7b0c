# The coordinator, with the dashboard inside.
#
#   docker build -t strata-coordinator .
#
# The stages up to `wheel` are the same in Dockerfile.worker, to the letter: a builder makes them once, and both images get
# the same wheel. docs/containers.md has the arguments and the reasons.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG NODE_IMAGE=docker.io/library/node:20-bookworm-slim
# `build` builds the dashboard with npm; `prebuilt` takes what `make dashboard` left in the clone.
ARG DASHBOARD=build

FROM ${NODE_IMAGE} AS dashboard-build
WORKDIR /build/dashboard
COPY dashboard/package.json dashboard/package-lock.json ./
RUN npm ci --silent --no-audit --no-fund
COPY dashboard ./
RUN npm run --silent build

FROM ${PYTHON_IMAGE} AS dashboard-prebuilt
COPY src/strata/dashboard/static /build/src/strata/dashboard/static

# hadolint ignore=DL3006
FROM dashboard-${DASHBOARD} AS dashboard

FROM ${PYTHON_IMAGE} AS wheel
# Where packages come from, for a site with a mirror or without a network.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
# A fixed time in each file of the wheel: the same sources give the same bytes.
ENV SOURCE_DATE_EPOCH=1577836800 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/build.txt requirements/
RUN python3 -m venv --without-pip /builder \
    && python3 -m pip --python /builder/bin/python install --no-compile --no-deps --require-hashes --only-binary :all: -r requirements/build.txt
COPY LICENSE README.md pyproject.toml ./
COPY src src
COPY --from=dashboard /build/src/strata/dashboard/static src/strata/dashboard/static
RUN test -s src/strata/dashboard/static/index.html && /builder/bin/python -m hatchling build -t wheel -d /wheel

FROM ${PYTHON_IMAGE} AS packages
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements/coordinator.txt /requirements.txt
RUN python3 -m venv --without-pip /opt/strata \
    && python3 -m pip --python /opt/strata/bin/python install --no-compile --no-deps --require-hashes --only-binary :all: -r /requirements.txt
COPY --from=wheel /wheel /wheel
# Without the tests and headers of libraries. Compiled files hold a hash and no time, so that they too are reproducible;
# it is not checked at import, because nothing in the image changes.
RUN python3 -m pip --python /opt/strata/bin/python install --no-compile --no-deps --no-index /wheel/*.whl \
    && find /opt/strata/lib -type d \( -name tests -o -name include \) -prune -exec rm -r {} + \
    && PYTHONHASHSEED=0 /opt/strata/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/strata/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Strata coordinator" \
      org.opencontainers.image.description="Keeps the workers of training runs in step; API, dashboard and metrics on HTTP." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=packages /opt/strata /opt/strata
COPY deploy/images/*.py /opt/strata/bin/
# Group 0 may write: a platform that runs the image with a random user id gives it that group.
RUN mkdir /data && chown 10001:0 /data && chmod 0775 /data
# /tmp is the only other place that is written to: mount a tmpfs there and make the rest read-only.
ENV PATH=/opt/strata/bin:${PATH} HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /data
EXPOSE 50051 50052 8080
USER 10001:0
# SIGTERM: what waits for the disk is written and answered, then the process ends.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "/opt/strata/bin/health_check.py"]
ENTRYPOINT ["strata"]
# It refuses to listen beyond its container without TLS and tokens: give them, or --insecure in a trusted network.
CMD ["coordinator", "--listen=0.0.0.0", "--state=sqlite:///data/journal.db"]

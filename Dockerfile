# The service as an image. Build it from the root of the repository:
#
#     docker build -t dpledger .
#
# Alone it keeps a SQLite ledger in the volume /data; a witness and backups may be kept in others,
# /witness and /backups. It listens on all addresses of its container, so it refuses to start before
# there is a key:
#
#     docker run --rm -v dpledger:/data dpledger keys create --scope admin --name admin
#     docker run -v dpledger:/data -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp dpledger
#
# docker-compose.yml runs it on PostgreSQL, deploy/chart on a cluster. Builders whose images have the
# OCI format (buildah and podman) leave out the HEALTHCHECK: build with `--format docker`, or give
# `--health-cmd "dpledger probe"` to podman run.
#
# The base is named by the digest of its index of all platforms. It was found in public Dockerfiles
# that agree, not asked of a registry; with a wrong one no build succeeds. This prints the present one:
#
#     docker buildx imagetools inspect python:3.11.13-slim-bookworm
ARG BASE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

FROM ${BASE} AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY accounting accounting
COPY service service
COPY migrations migrations
COPY docs/problems docs/problems
COPY docs/theory docs/theory
COPY docs/glossary.md docs/glossary.md
# The constraints also fix the version of the build backend, which pip installs by itself.
RUN PIP_CONSTRAINT=/build/constraints.txt pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# --build-arg EXTRAS=[telemetry] adds what OpenTelemetry needs, some 10 MB.
ARG EXTRAS=
# Only ready-made packages, so that neither stage needs a compiler. What numpy, scipy and
# sqlalchemy are tested with, parts of scipy that no code here loads, and compiled sources go.
RUN python -m venv /opt/dpledger \
    && /opt/dpledger/bin/pip install --no-cache-dir --no-compile --only-binary :all: \
       --constraint constraints.txt "$(echo /wheels/dpledger-*.whl)${EXTRAS}" \
    && /opt/dpledger/bin/pip uninstall --yes pip setuptools \
    && cd /opt/dpledger/lib/python3.*/site-packages \
    && find numpy scipy -type d -name tests -prune -exec rm -r {} + \
    && rm -r scipy/cluster scipy/io scipy/odr scipy/signal sqlalchemy/testing \
    && find . \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.[ch]' \) -delete
# It serves once, so that what a start loads is compiled (24 MB) and the rest is not (32 MB more).
RUN set -eu; cd /tmp; export DPLEDGER_DATABASE_URL=sqlite:////tmp/build.db; \
    /opt/dpledger/bin/dpledger serve & server=$!; \
    until /opt/dpledger/bin/dpledger probe; do kill -0 $server; sleep 0.5; done; \
    kill -TERM $server; wait $server

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
ARG BASE
LABEL org.opencontainers.image.title="dpledger" \
      org.opencontainers.image.description="Records and limits the privacy loss of machine-learning training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=build /opt/dpledger /opt/dpledger
# A volume that is first mounted here takes over the owner, so that the user below may write to it.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin dpledger \
    && install --directory --owner dpledger --group dpledger --mode 0700 /data /witness /backups
ENV PATH=/opt/dpledger/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    OPENBLAS_NUM_THREADS=1 \
    DPLEDGER_DATABASE_URL=sqlite:////data/dpledger.db
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["dpledger", "probe"]
ENTRYPOINT ["dpledger"]
CMD ["serve", "--host", "0.0.0.0"]

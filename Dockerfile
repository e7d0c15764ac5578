# The service as an image. Build it from the root of the repository:
#
#     docker build -t dpledger .
#
# Alone it keeps a SQLite ledger in the volume /data; a witness may be kept in another, /witness. It listens on all addresses of its container,
# so it refuses to start before there is a key:
#
#     docker run --rm -v dpledger:/data dpledger keys create --scope admin --name NAME
#     docker run -v dpledger:/data -p 127.0.0.1:8000:8000 dpledger
#
# docker-compose.yml runs it on PostgreSQL.

FROM python:3.11.13-slim-bookworm AS build
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
# Only ready-made packages, so that neither stage needs a compiler.
RUN python -m venv /opt/dpledger \
    && /opt/dpledger/bin/pip install --no-cache-dir --only-binary :all: \
       --constraint constraints.txt /wheels/dpledger-*.whl \
    && /opt/dpledger/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm
COPY --from=build /opt/dpledger /opt/dpledger
# A volume that is first mounted here takes over the owner, so that the user below may write to it.
RUN useradd --system --uid 10001 --user-group --no-create-home dpledger \
    && install --directory --owner dpledger --group dpledger --mode 0700 /data /witness
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
# Without proxies: one named in the environment could not reach this container's own address.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from os import environ as e; from urllib import request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + e.get('DPLEDGER_PORT', '8000') + '/readyz', timeout=4)"]
ENTRYPOINT ["dpledger"]
CMD ["serve", "--host", "0.0.0.0"]

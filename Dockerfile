# syntax=docker/dockerfile:1
# Tollgate in a slim image: not root, nothing to write but /data, dependencies by hash.
# For a build that can be repeated, name the base by its digest: --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:…
# (`docker buildx imagetools inspect python:3.13-slim` shows it).
#   docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t tollgate .
#   install -d -o 10001 -g 10001 -m 0700 settings
#   docker run --rm -it -v tollgate:/data -v ./settings:/etc/tollgate tollgate init
#   docker run --read-only --tmpfs /tmp -v tollgate:/data -v ./settings:/etc/tollgate:ro -p 8402:8402 tollgate
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements/runtime.txt requirements/image.txt requirements/build.txt requirements/
RUN python -m venv /opt/tollgate \
 && /opt/tollgate/bin/pip install --require-hashes --no-deps -r requirements/image.txt \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
ARG COMMIT=""
RUN if [ -n "$COMMIT" ]; then printf '%s\n' "$COMMIT" > src/tollgate/COMMIT; fi \
 && /opt/build/bin/python -m hatchling build -t wheel -d dist \
 && /opt/tollgate/bin/pip install --no-deps dist/*.whl \
 && /opt/tollgate/bin/python -m compileall -q /opt/tollgate/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Tollgate" \
      org.opencontainers.image.description="A blockchain RPC access service that anyone can host" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 tollgate \
 && useradd --uid 10001 --gid tollgate --no-create-home --home-dir /data --shell /usr/sbin/nologin tollgate \
 && install -d -o tollgate -g tollgate -m 0700 /data /etc/tollgate
COPY --from=build /opt/tollgate /opt/tollgate
ENV PATH=/opt/tollgate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TOLLGATE_CONFIG=/etc/tollgate/tollgate.toml \
    TOLLGATE_DATA_DIR=/data \
    TOLLGATE_SERVER__HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8402
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8402/healthz', timeout=2)"]
ENTRYPOINT ["tollgate"]
CMD ["serve"]

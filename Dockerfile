# The whole service in one image: API and worker by `sluicegate up`.
# Unproven: its steps were run by hand on a bare Debian 12, but no Docker engine has built it yet.
# Before you publish an image made from it, read docs/decisions/0009-licences-of-media-wheels.md.

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock ./
RUN python3 -m venv /opt/sluicegate \
    && /opt/sluicegate/bin/python -m pip install --no-cache-dir --require-hashes -r requirements.lock
COPY LICENSE README.md pyproject.toml ./
COPY prefilters prefilters
COPY guard guard
COPY fallback fallback
COPY gateway gateway
# What builds stays behind: the last stage gets neither pip nor setuptools.
RUN /opt/sluicegate/bin/python -m pip install --no-cache-dir --no-build-isolation --no-deps . \
    && /opt/sluicegate/bin/python -m pip uninstall -y setuptools pip

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 tesseract-ocr tesseract-ocr-chi-sim \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin sluicegate \
    && install -d -o sluicegate -g sluicegate -m 0700 /data
COPY --from=build /opt/sluicegate /opt/sluicegate
ENV PATH=/opt/sluicegate/bin:$PATH PYTHONUNBUFFERED=1 SLUICEGATE_HOST=0.0.0.0 SLUICEGATE_PORT=8080 SLUICEGATE_DATA_DIR=/data
USER sluicegate
WORKDIR /data
VOLUME /data
EXPOSE 8080
# Ready, not merely alive: the database, the blobs, the rules and the profiles can be used.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['SLUICEGATE_PORT']}/readyz\", timeout=4)"]
STOPSIGNAL SIGTERM
# Reachable from outside the container, so it wants a key before it starts: `docker run … keys create` on the same volume.
ENTRYPOINT ["sluicegate"]
CMD ["up"]

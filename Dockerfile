# Two stages: the first has Node and pip, the second only what runs. No compiler in either: everything comes as wheels.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /source
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY . .
# The dashboard is built on the way, with the Node that the build hook asks for as a Python wheel.
RUN TRAINWATCH_WEB=require pip wheel --only-binary=:all: --no-binary=trainwatch --wheel-dir /wheels ".[server,oidc]"

FROM python:${PYTHON}-slim-bookworm
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# pip compiles while it installs; nothing is written to the file system later, which may therefore be read-only.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-index --find-links /wheels "trainwatch[server,oidc]" \
    && useradd --system --uid 10001 --user-group --home-dir /data --shell /usr/sbin/nologin trainwatch \
    && install --directory --owner trainwatch --group trainwatch --mode 0750 /data
USER 10001:10001
WORKDIR /data
# SQLite lies here, where no other database is named. /tmp should be writable: a tmpfs will do.
VOLUME /data
ENV TRAINWATCH_HOST=0.0.0.0 \
    TRAINWATCH_PORT=8420 \
    TRAINWATCH_HOME=/data \
    TRAINWATCH_LOG_FORMAT=json
EXPOSE 8420
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "trainwatch.server.probe", "health"]
CMD ["python", "-m", "trainwatch.server"]

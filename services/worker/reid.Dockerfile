# The worker of multi-edge services with the application reid: the index of features beside what every worker has. Its
# argument is member or joint. Build at the top of the repository:
#   docker build -f services/worker/reid.Dockerfile -t halimede/worker-reid:0.1.0 .
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY halimede halimede
COPY services services
COPY examples/__init__.py examples/__init__.py
COPY examples/digits examples/digits
# wheels alone: there is no compiler, on no architecture
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --only-binary :all: -c constraints.txt ".[worker,camera,reid,otel]"

FROM python:3.11-slim-bookworm
# a fixed number, so that a pod's runAsNonRoot can be checked without reading /etc/passwd
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/halimede --shell /usr/sbin/nologin halimede \
    && mkdir -p /var/lib/halimede && chown 10001:10001 /var/lib/halimede
COPY --from=build /venv /venv
# nothing is written but below /var/lib/halimede and /tmp: the root file system may be read-only
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HALIMEDE_LOG=json \
    HALIMEDE_HOME=/var/lib/halimede HALIMEDE_HTTP=127.0.0.1:9101
USER 10001:10001
WORKDIR /app
VOLUME /var/lib/halimede
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['HALIMEDE_HTTP'].rpartition(':')[2] + '/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "halimede", "worker"]

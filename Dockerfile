# All images of halimede, a target each. Build at the top of the repository:
#   docker build --target gm -t halimede/gm:0.1.0 .
#   docker build --target lc -t halimede/lc:0.1.0 .
#   docker build --target worker -t halimede/worker:0.1.0 .
#   docker build --target worker-reid -t halimede/worker-reid:0.1.0 .
#   docker build --target serve -t halimede/serve:0.1.0 .
#   docker build --target camera -t halimede/camera:0.1.0 .
#   docker build --target node -t halimede/node:0.1.0 .
# Images share their layers of packages, and have the project's wheel in a small layer on top. Only wheels are
# installed: no compiler is needed on any architecture. pip is mounted from a stage that is in no image. Another package
# index: `--secret id=pip.conf,src=...`, a configuration file of pip.
FROM python:3.11-slim-bookworm AS python

# --- used to build images, in none of them ---

FROM python AS pip
RUN python -m venv /pip
COPY constraints.txt /pip/

FROM pip AS wheel
WORKDIR /build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY halimede halimede
COPY services services
COPY examples/__init__.py examples/demo_command.py examples/
COPY examples/digits examples/digits
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=cache,target=/root/.cache/pip \
    PIP_CONSTRAINT=/pip/constraints.txt /pip/bin/pip wheel --only-binary :all: --no-deps --wheel-dir /wheel .

# of a stage that comes from its cache, buildah 1.28 mounts the base alone: this one has nothing to cache
FROM wheel AS built

# --- what images share ---

FROM python AS base
# pip, setuptools and the wheels of both that `venv` would install
RUN find / -xdev \( -path '*/python3*' -o -path '*/bin/*' -o -path '*/python-wheels/*' \) \( -name 'pip' -o -name 'pip[-0-9]*' \
    -o -name 'setuptools*' -o -name 'wheel' -o -name 'wheel-*' -o -name pkg_resources -o -name _distutils_hack \
    -o -name 'distutils-precedence.pth' -o -name ensurepip \) -prune -exec rm -rf {} +
# a fixed number, so that a pod's runAsNonRoot can be checked without reading /etc/passwd
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/halimede --shell /usr/sbin/nologin halimede \
    && mkdir -p /var/lib/halimede && chown 10001:10001 /var/lib/halimede \
    && python -m venv --without-pip /venv
# nothing is written but below /var/lib/halimede and /tmp: the root file system may be read-only
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HALIMEDE_LOG=json \
    HALIMEDE_HOME=/var/lib/halimede
WORKDIR /app
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['HALIMEDE_HTTP'].rpartition(':')[2] + '/healthz', timeout=4)"]

FROM base AS common
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt \
    aiohttp filelock msgspec paho-mqtt prometheus-client structlog

FROM common AS arrays
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt numpy pillow simplejpeg

# FFmpeg is in the wheel of `av`
FROM arrays AS video
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt av

FROM video AS inference
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt \
    onnxruntime opencv-python-headless opentelemetry-exporter-otlp-proto-http opentelemetry-sdk

# --- the images: the last step of each fails if a package of its extras is missing ---

# The global manager, standalone or on Kubernetes.
FROM common AS gm
# of the Kubernetes client GM uses the transport and the configuration; its generated interfaces and models are 123 MB
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt kubernetes \
    && find /venv/lib/python3*/site-packages/kubernetes -regex '.*/client/\(api\|models\)/.*' -type f \
    ! -name '__init__.*' -delete
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[gm,kubernetes]"
ENV HALIMEDE_HTTP=127.0.0.1:8686
USER 10001:10001
VOLUME /var/lib/halimede
ENTRYPOINT ["python", "-m", "halimede", "gm"]

# The local controller, and the fetcher of models in worker pods (python -m halimede.models). No numpy, no ONNX Runtime:
# on Kubernetes workers bring their own image.
FROM common AS lc
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt obstore
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[lc,s3]"
ENV HALIMEDE_HTTP=127.0.0.1:9100
USER 10001:10001
VOLUME /var/lib/halimede
ENTRYPOINT ["python", "-m", "halimede", "lc"]

# A server of ONNX models (InferenceModel), and the router before two of them:
#   docker run --entrypoint python halimede/serve:0.1.0 -m halimede router
FROM arrays AS serve
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt grpcio onnxruntime opencv-python-headless protobuf
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[serve,grpc,opencv]"
ENV HALIMEDE_HTTP=127.0.0.1:8080
USER 10001:10001
WORKDIR /var/lib/halimede
VOLUME /var/lib/halimede
EXPOSE 8080 8081
ENTRYPOINT ["python", "-m", "halimede", "serve"]
CMD ["--file", "/var/lib/halimede/models.json", "--http", ":8080", "--grpc", ":8081"]

# Cameras that speak no MQTT (RTSP, V4L2, MJPEG, files), as cameras of the bus. It writes nothing.
FROM video AS camera
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[camera]" \
    # opens /dev/video*
    && usermod --append --groups video halimede
ENV HALIMEDE_HTTP=127.0.0.1:9102
USER 10001:10001
ENTRYPOINT ["python", "-m", "halimede", "camera"]

# A worker for services that bring no image of their own; its argument is edge, tier or cloud, of multi-edge services
# member or joint. It has all that fusion, balance and users' own applications need.
FROM inference AS worker
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[worker,camera,opencv,otel]"
ENV HALIMEDE_HTTP=127.0.0.1:9101
USER 10001:10001
VOLUME /var/lib/halimede
ENTRYPOINT ["python", "-m", "halimede", "worker"]

# The worker of multi-edge services with the application reid: the index of features beside what every worker has.
FROM inference AS worker-reid
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt usearch
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[worker,camera,opencv,reid,otel]"
ENV HALIMEDE_HTTP=127.0.0.1:9101
USER 10001:10001
VOLUME /var/lib/halimede
ENTRYPOINT ["python", "-m", "halimede", "worker"]

# A node without Kubernetes: the local controller, and the workers and servers that it starts, in one image.
FROM inference AS node
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    /pip/bin/pip --python /venv install --only-binary :all: -c /pip/constraints.txt grpcio obstore protobuf
RUN --mount=type=bind,from=pip,source=/pip,target=/pip --mount=type=bind,from=built,source=/wheel,target=/wheel \
    /pip/bin/pip --python /venv install --no-index "$(echo /wheel/*.whl)[lc,s3,worker,camera,opencv,serve,grpc,otel]"
ENV HALIMEDE_HTTP=127.0.0.1:9100
USER 10001:10001
VOLUME /var/lib/halimede
ENTRYPOINT ["python", "-m", "halimede", "lc"]

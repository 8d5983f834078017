# A node without Kubernetes: the local controller and the workers that it starts, in one image.
# Build at the top of the repository: docker build -f services/node.Dockerfile -t halimede/node .
FROM python:3.11-slim

WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY halimede halimede
RUN pip install --no-cache-dir --constraint constraints.txt ".[lc,worker]" \
    && useradd --uid 10001 --create-home --home-dir /var/lib/halimede halimede
COPY services/__init__.py services/
COPY services/lc services/lc
COPY services/worker services/worker

USER 10001
ENV PYTHONPATH=/app HALIMEDE_HOME=/var/lib/halimede
VOLUME /var/lib/halimede
ENTRYPOINT ["python", "-m", "services.lc"]

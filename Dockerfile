# rankwell in an image: `docker run rankwell` is the command, so that index, fit and serve all work.
#
#   docker build --target cpu  -t rankwell .             # for a CPU, some 2 GB
#   docker build --target cuda -t rankwell:cuda .        # for NVIDIA's GPUs: docker run --gpus all …
#
#   docker run --rm -v "$PWD:/data" rankwell index collection.csv --out my-index
#   docker run --rm -v "$PWD:/data" -p 8000:8000 rankwell serve my-index --host 0.0.0.0
#
# A service without torch, for an exported model (`rankwell export MODEL --to onnx --out DIR`), in a tenth of the size:
#
#   docker build --target cpu --build-arg EXTRAS=serve --build-arg PACKAGES="onnxruntime tokenizers" -t rankwell:onnx .
FROM python:3.12-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/rankwell
ENV PATH=/opt/rankwell/bin:$PATH
WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./

# Packages first: they change less often than the code, so their layer is kept.
FROM base AS build-cpu
ARG EXTRAS=models,serve,parquet,languages
ARG PACKAGES="torch --index-url https://download.pytorch.org/whl/cpu"
RUN if [ -n "${PACKAGES}" ]; then pip install ${PACKAGES}; fi
RUN mkdir -p src/rankwell recipes && touch src/rankwell/__init__.py && pip install ".[${EXTRAS}]" && pip uninstall --yes rankwell
COPY src src
COPY recipes recipes
RUN pip install --no-deps .

FROM base AS build-cuda
ARG EXTRAS=models,serve,parquet,languages
RUN mkdir -p src/rankwell recipes && touch src/rankwell/__init__.py && pip install ".[${EXTRAS}]" && pip uninstall --yes rankwell
COPY src src
COPY recipes recipes
RUN pip install --no-deps .

FROM python:3.12-slim AS run
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin rankwell
# Compiled kernels are kept in a folder the user may write; everything else may be mounted read-only.
RUN install -d -o rankwell /var/cache/rankwell /data
ENV PATH=/opt/rankwell/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/rankwell
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
# The exec form: SIGTERM reaches the service itself, which finishes what it has begun.
STOPSIGNAL SIGTERM
ENTRYPOINT ["rankwell"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]

FROM run AS cuda
COPY --from=build-cuda /opt/rankwell /opt/rankwell
USER 10001

FROM run AS cpu
COPY --from=build-cpu /opt/rankwell /opt/rankwell
USER 10001
# Compile now what the first start would wait for.
RUN ["python", "-c", "from rankwell import Index; Index.build(['a warm-up']).rank('warm')"]

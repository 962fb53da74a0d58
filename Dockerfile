# A service without torch: an exported model (`rankwell export MODEL --backend onnx --out DIR`) and an index.
#
#   docker build -t rankwell .
#   docker run --rm -p 8000:8000 -v "$PWD/index:/data/index:ro" -v "$PWD/exported:/data/model:ro" rankwell \
#       --index /data/index --model /data/model --backend onnx
#
# For torch models: docker build --build-arg EXTRAS=serve,models -t rankwell .   (and leave --backend out; without any
# arguments it then serves the bundled sample with the default model)
FROM python:3.12-slim AS build
ARG EXTRAS=serve
# What scores a graph. The extra onnx has these, too, and 200 MB of what makes graphs or runs them otherwise.
ARG PACKAGES="onnxruntime tokenizers"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/rankwell
ENV PATH=/opt/rankwell/bin:$PATH
WORKDIR /build
# Packages first: they change less often than the code, so their layer is kept.
COPY pyproject.toml README.md LICENSE constraints.txt ./
RUN mkdir -p src/rankwell && touch src/rankwell/__init__.py \
    && pip install --constraint constraints.txt ".[${EXTRAS}]" ${PACKAGES} && pip uninstall --yes rankwell
COPY src src
RUN pip install --no-deps .

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin rankwell
COPY --from=build /opt/rankwell /opt/rankwell
# Compiled kernels are kept in a folder the user may write; everything else may be mounted read-only.
RUN install -d -o rankwell /var/cache/rankwell
ENV PATH=/opt/rankwell/bin:$PATH \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/rankwell \
    HF_HUB_OFFLINE=1
USER 10001
# Compile now what the first start would wait for.
RUN ["python", "-c", "import tempfile; from rankwell.corpus.records import Document; from rankwell.retrieve.index import Index; Index.build([Document('1', 'a warm-up')], tempfile.mkdtemp() + '/i').rank('warm')"]
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
# The exec form: SIGTERM reaches the service itself, which finishes what it has begun.
STOPSIGNAL SIGTERM
ENTRYPOINT ["rankwell", "serve", "--host", "0.0.0.0", "--port", "8000"]

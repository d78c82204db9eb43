# docker build -t amqpscope .                        with Spark and Java
# docker build -t amqpscope:small --target small .   without
# docker run --rm -v "$PWD:/captures" --user "$(id -u)" amqpscope handshakes trouble.pcap

FROM python:3.11-slim-bookworm AS build
# Debian keeps no old versions that could be named.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir -e '.[compile,tls]' \
    && python -m tools.kernels build/compiled \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels -C compiled=/source/build/compiled .

FROM python:3.11-slim-bookworm AS small
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[report,tls]"
RUN useradd --create-home --uid 10001 amqpscope
# As a number, which clusters can check not to be root's.
USER 10001
# Whatever user runs it: matplotlib keeps a list of fonts.
ENV MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /captures
ENTRYPOINT ["amqpscope"]
CMD ["--help"]

FROM small AS spark
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[spark]"
COPY tools/entrypoint /usr/local/bin/entrypoint
USER 10001
ENTRYPOINT ["entrypoint"]
CMD ["--help"]

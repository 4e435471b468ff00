# The program and the certificates of authorities, and nothing else: no shell, no package manager, no root.
FROM golang:1.26-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# As tools/release.sh has them: --build-arg VERSION=1.2.3 --build-arg COMMIT=$(git rev-parse HEAD)
ARG VERSION=
ARG COMMIT=
ARG COMMIT_DATE=
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT} -X main.commitDate=${COMMIT_DATE}" -o /image/usr/local/bin/scribe ./cmd/scribe
RUN mkdir -p /data /image/tmp /image/etc/ssl/certs && chmod 1777 /image/tmp && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
    && echo 'scribe:x:10001:10001::/data:/' >/image/etc/passwd

FROM scratch
COPY --from=build /image/ /
# A volume that is made at /data belongs to whom the folder in the image belongs to.
COPY --from=build --chown=10001:10001 /data /data
USER 10001:10001
VOLUME /data
WORKDIR /data
EXPOSE 7420
# Ends on SIGTERM, after everything that was accepted is durable.
ENTRYPOINT ["/usr/local/bin/scribe"]
# Whoever publishes the port beyond the own machine replaces --insecure by --secure or certificates: docs/security.md. The health check then needs
# SCRIBE_SERVER and SCRIBE_CA: docs/operations.md.
CMD ["up", "--data", "/data", "--listen", "0.0.0.0:7420", "--insecure"]
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s CMD ["/usr/local/bin/scribe", "ready"]

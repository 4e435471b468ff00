# One static binary in an image without anything else but certificates.
FROM golang:1.26-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /scribe ./cmd/scribe

FROM alpine:3.22
RUN adduser -D -u 10001 scribe && mkdir /data && chown scribe /data
COPY --from=build /scribe /usr/local/bin/scribe
USER scribe
VOLUME /data
WORKDIR /data
EXPOSE 7420
# Ends on SIGTERM, after everything that was accepted is durable.
ENTRYPOINT ["scribe"]
# Whoever publishes the port beyond the own machine replaces --insecure by --secure or certificates: docs/security.md.
CMD ["up", "--data", "/data", "--listen", "0.0.0.0:7420", "--insecure"]

{{/* What values.schema.json can't say, in words that tell what to do. */}}
{{- define "scribe.validate" -}}
{{- $v := .Values -}}
{{- if not (or $v.nodes.enabled $v.agent.enabled) -}}
{{- fail "nodes.enabled and agent.enabled are both false: there is nothing to install" -}}
{{- end -}}
{{- if and $v.tls.enabled $v.insecure -}}
{{- fail "tls.enabled and insecure are both true: want one of them" -}}
{{- end -}}
{{- with $v.tls -}}
{{- if and .enabled .certManager.enabled .existingSecret -}}
{{- fail "tls.existingSecret and tls.certManager.enabled: want one of them" -}}
{{- end -}}
{{- end -}}
{{- if $v.nodes.enabled -}}
{{- include "scribe.validate.nodes" . -}}
{{- end -}}
{{- if $v.agent.enabled -}}
{{- include "scribe.validate.agent" . -}}
{{- end -}}
{{- with $v.metrics.serviceMonitor -}}
{{- if and .enabled $v.tls.enabled (not (include "scribe.metrics.certSecret" $)) (or (not .tokenSecret.name) (and $v.agent.enabled $v.agent.network.enabled)) -}}
{{- fail "metrics.serviceMonitor.certSecret is missing: with tls.enabled, Prometheus proves who it is by a client's certificate, or at nodes by tokenSecret" -}}
{{- end -}}
{{- if and .enabled (not $v.nodes.enabled) (not $v.agent.network.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: agents serve their metrics at loopback addresses; want agent.network.enabled" -}}
{{- end -}}
{{- end -}}
{{- if and $v.metrics.job (not (hasPrefix "scribe" $v.metrics.job)) -}}
{{- fail (printf "metrics.job is %q: want a name that begins with scribe, by which rules and dashboards know cells" $v.metrics.job) -}}
{{- end -}}
{{- end -}}

{{- define "scribe.validate.nodes" -}}
{{- $v := .Values -}}
{{- if not (or $v.tls.enabled $v.insecure) -}}
{{- fail "nodes are reached from other hosts, and nothing proves who calls: everybody there could read, write and delete everything. Want tls.enabled, or insecure if that is wanted" -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.existingSecret) (not $v.tls.certManager.enabled) -}}
{{- fail "tls.enabled: want tls.existingSecret with tls.crt, tls.key and ca.crt, or tls.certManager.enabled" -}}
{{- end -}}
{{- with $v.blobs -}}
{{- if eq .kind "s3" -}}
{{- if or (not .s3.endpoint) (not .s3.bucket) -}}
{{- fail "blobs.s3.endpoint and blobs.s3.bucket are missing: want the URL of a store, such as https://s3.eu-central-1.amazonaws.com, and the name of a bucket" -}}
{{- end -}}
{{- if eq (ternary 1 0 .s3.credentials.iam) (ternary 1 0 (ne .s3.credentials.existingSecret "")) -}}
{{- fail "blobs.s3.credentials: want either existingSecret, with an access key and a secret key, or iam, for the identity that the platform gives to the pod" -}}
{{- end -}}
{{- if and .s3.kmsKey (ne .s3.encryption "kms") -}}
{{- fail "blobs.s3.kmsKey: only the encryption kms has a key" -}}
{{- end -}}
{{- else if and (gt (int $v.nodes.count) 1) (not .file.existingClaim) -}}
{{- fail "blobs.file.existingClaim is missing: several nodes share the volume of payloads; or want blobs.kind s3" -}}
{{- end -}}
{{- end -}}
{{- if and $v.nodes.adopt (eq (int $v.nodes.count) 1) -}}
{{- fail "nodes.adopt: one node has nobody to bring anything along for; want it with nodes.count 3 or 5" -}}
{{- end -}}
{{- if not (hasKey (dict "1" 0 "3" 0 "5" 0) (toString $v.nodes.count)) -}}
{{- fail "nodes.count: want 1, 3 or 5" -}}
{{- end -}}
{{- range $key := list "roles" "data" "listen" "socket" "tls_cert" "tls_key" "tls_ca" "tls_client_ca" "secure" "insecure" "plain_listen" "advertise" "id" "control" "metalog" "node" "cluster" "adopt" "etcd" "upstream" "blobs" "shutdown_timeout" -}}
{{- if hasKey $v.nodes.settings $key -}}
{{- fail (printf "nodes.settings.%s: the chart says that itself, from other values" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "scribe.validate.agent" -}}
{{- $v := .Values -}}
{{- if not (or $v.nodes.enabled $v.agent.upstream) -}}
{{- fail "agent.upstream is missing: without nodes in this release agents need the URL of a cell" -}}
{{- end -}}
{{- if $v.tls.enabled -}}
{{- if not (or $v.agent.tls.existingSecret $v.tls.certManager.enabled) -}}
{{- fail "agent.tls.existingSecret is missing: want a Secret with ca.crt, tls.crt and tls.key (scribe cert server NAME --kind agent), or tls.certManager.enabled" -}}
{{- end -}}
{{- if and (not $v.agent.tls.certificate) (or (not $v.agent.tokenSecret.name) $v.agent.network.enabled) -}}
{{- fail "agent.tls.certificate is false: agents prove who they are by agent.tokenSecret.name then, and serve their own host alone" -}}
{{- end -}}
{{- range $url := splitList "," (include "scribe.agent.upstream" .) -}}
{{- if not (hasPrefix "https://" (trim $url)) -}}
{{- fail (printf "agent.upstream: %q, and tls.enabled: want https://" $url) -}}
{{- end -}}
{{- end -}}
{{- else if and $v.agent.network.enabled (not $v.insecure) -}}
{{- fail "agent.network.enabled: agents are reached from other hosts then, and nothing proves who calls. Want tls.enabled, or insecure if that is wanted" -}}
{{- end -}}
{{- range $key := list "roles" "data" "listen" "socket" "tls_cert" "tls_key" "tls_ca" "tls_client_ca" "insecure" "plain_listen" "advertise" "upstream" "shutdown_timeout" -}}
{{- if hasKey $v.agent.settings $key -}}
{{- fail (printf "agent.settings.%s: the chart says that itself, from other values" $key) -}}
{{- end -}}
{{- end -}}
{{- if hasKey ($v.agent.settings.spool | default dict) "dir" -}}
{{- fail "agent.settings.spool.dir: the chart says that itself, from agent.spoolPath" -}}
{{- end -}}
{{- end -}}

{{- define "scribe.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Pods have a number behind it, and their controllers a hash: 50 characters leave room for both. */}}
{{- define "scribe.fullname" -}}
{{- $name := include "scribe.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Selectors can't be changed: these must stay as they are. Takes the root and the component. */}}
{{- define "scribe.selector" -}}
app.kubernetes.io/name: {{ include "scribe.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "scribe.labels" -}}
{{ include "scribe.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "scribe.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "scribe.nodes.serviceAccount" -}}
{{- with .Values.nodes.serviceAccount -}}
{{- if .create }}{{ .name | default (include "scribe.fullname" $) }}{{ else }}{{ .name | default "default" }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "scribe.agent.serviceAccount" -}}
{{- with .Values.agent.serviceAccount -}}
{{- if .create }}{{ .name | default (printf "%s-agent" (include "scribe.fullname" $)) }}{{ else }}{{ .name | default "default" }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "scribe.scheme" -}}
{{ ternary "https" "http" .Values.tls.enabled }}
{{- end -}}

{{/* The domain of the nodes' names, which are there before the nodes are ready: the headless Service publishes them. */}}
{{- define "scribe.nodes.domain" -}}
{{ include "scribe.fullname" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* NAME=HOST:PORT of every node: a node is called as its pod is. */}}
{{- define "scribe.nodes.cluster" -}}
{{- $nodes := list -}}
{{- range $i := until (int .Values.nodes.count) -}}
{{- $name := printf "%s-%d" (include "scribe.fullname" $) $i -}}
{{- $nodes = append $nodes (printf "%s=%s.%s:%d" $name $name (include "scribe.nodes.domain" $) (int $.Values.nodes.port)) -}}
{{- end -}}
{{- join "," $nodes -}}
{{- end -}}

{{/* The names of the client Service. */}}
{{- define "scribe.service.hosts" -}}
{{- $name := include "scribe.fullname" . -}}
{{- $hosts := list (printf "%s.%s.svc.%s" $name .Release.Namespace .Values.clusterDomain) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s" $name .Release.Namespace) $name -}}
{{- concat $hosts .Values.service.extraHosts | join "," -}}
{{- end -}}

{{/* All names that the certificate of the nodes has: those of five, since there may be so many one day. */}}
{{- define "scribe.nodes.hosts" -}}
{{- $hosts := list -}}
{{- range $i := until 5 -}}
{{- $hosts = append $hosts (printf "%s-%d.%s" (include "scribe.fullname" $) $i (include "scribe.nodes.domain" $)) -}}
{{- end -}}
{{- append $hosts (include "scribe.service.hosts" .) | join "," -}}
{{- end -}}

{{- define "scribe.service.url" -}}
{{ include "scribe.scheme" . }}://{{ include "scribe.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ .Values.service.port }}
{{- end -}}

{{- define "scribe.nodes.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "scribe.fullname" .)) }}
{{- end -}}

{{/* The Service at which pods reach the agent of their host. */}}
{{- define "scribe.agent.host" -}}
{{ include "scribe.fullname" . }}-agent.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "scribe.agent.tlsSecret" -}}
{{ .Values.agent.tls.existingSecret | default (printf "%s-agent-tls" (include "scribe.fullname" .)) }}
{{- end -}}

{{- define "scribe.agent.upstream" -}}
{{ .Values.agent.upstream | default (include "scribe.service.url" .) }}
{{- end -}}

{{/* The certificate with which Prometheus proves who it is; empty for none. */}}
{{- define "scribe.metrics.certSecret" -}}
{{- if .Values.tls.enabled -}}
{{- .Values.metrics.serviceMonitor.certSecret | default (ternary (printf "%s-prometheus-tls" (include "scribe.fullname" .)) "" .Values.tls.certManager.enabled) -}}
{{- end -}}
{{- end -}}

{{- define "scribe.issuer" -}}
{{- with .Values.tls.certManager.issuerRef -}}
{{- if .name -}}
{{ toYaml . }}
{{- else -}}
name: {{ include "scribe.fullname" $ }}-ca
kind: Issuer
group: cert-manager.io
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The label job of a cell's series. It begins with scribe, by which the rules know them. */}}
{{- define "scribe.job" -}}
{{- $name := include "scribe.fullname" . -}}
{{- .Values.metrics.job | default (ternary $name (printf "scribe-%s" $name) (hasPrefix "scribe" $name)) -}}
{{- end -}}

{{- define "scribe.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Names and labels. A release named strata has strata-coordinator, strata-worker and strata-dashboard. */}}
{{- define "strata.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "strata.coordinator" -}}{{ include "strata.fullname" . }}-coordinator{{- end -}}
{{- define "strata.replicas" -}}{{ include "strata.fullname" . }}-coordinator-replicas{{- end -}}
{{- define "strata.worker" -}}{{ include "strata.fullname" . }}-worker{{- end -}}
{{- define "strata.dashboard" -}}{{ include "strata.fullname" . }}-dashboard{{- end -}}

{{/* A priority class: (list $ "worker"). It is the cluster's, so the namespace is in its name, after a dot that neither part has. */}}
{{- define "strata.priorityClass" -}}
{{- $root := index . 0 -}}
{{ include "strata.fullname" $root }}-{{ index . 1 }}.{{ $root.Release.Namespace }}
{{- end -}}

{{/* Labels of an object: (list $ "coordinator"). */}}
{{- define "strata.labels" -}}
{{- $root := index . 0 -}}
{{ include "strata.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: strata
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of the pods of a part: (list $ "coordinator"). They never change, so that a new chart alone restarts no training. */}}
{{- define "strata.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "strata.coordinatorImage" -}}
{{ .Values.coordinator.image | default (printf "syrilj/strata-coordinator:%s" .Chart.AppVersion) }}
{{- end -}}
{{- define "strata.workerImage" -}}
{{ .Values.workers.image | default (printf "syrilj/strata-worker:%s" .Chart.AppVersion) }}
{{- end -}}

{{- define "strata.coordinatorAccount" -}}
{{ .Values.serviceAccount.coordinatorName | default (ternary (include "strata.coordinator" .) "default" .Values.serviceAccount.create) }}
{{- end -}}
{{- define "strata.workerAccount" -}}
{{ .Values.serviceAccount.workerName | default (ternary (include "strata.worker" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{- define "strata.isEtcd" -}}{{ if eq .Values.coordinator.journal.backend "etcd" }}yes{{ end }}{{- end -}}

{{/* Where clients find the coordinator. Replicas are found by the records of the headless Service: one of them leads. */}}
{{- define "strata.coordinatorUrl" -}}
{{- $host := ternary (include "strata.replicas" .) (include "strata.coordinator" .) (eq .Values.coordinator.journal.backend "etcd") -}}
{{- $port := ternary 50051 (int .Values.coordinator.service.grpcPort) (eq .Values.coordinator.journal.backend "etcd") -}}
{{ ternary "strata" "stratas" .Values.security.insecure }}://{{ $host }}.{{ .Release.Namespace }}.svc:{{ $port }}
{{- end -}}
{{- define "strata.httpUrl" -}}
{{ ternary "http" "https" .Values.security.insecure }}://{{ include "strata.coordinator" . }}.{{ .Release.Namespace }}.svc:{{ .Values.coordinator.service.httpPort }}
{{- end -}}

{{- define "strata.tlsSecret" -}}
{{ ternary .Values.security.tls.secretName (printf "%s-tls" (include "strata.fullname" .)) (eq .Values.security.tls.source "secret") }}
{{- end -}}
{{/* The certificate of clients, for mutual TLS. It is never the coordinator's: who reads a worker's pod must not have its key. */}}
{{- define "strata.clientSecret" -}}
{{ ternary .Values.security.tls.clientSecretName (printf "%s-tls-client" (include "strata.fullname" .)) (eq .Values.security.tls.source "secret") }}
{{- end -}}
{{/* Whether clients need a certificate. */}}
{{- define "strata.isMutual" -}}{{ if and .Values.security.tls.mutual (not .Values.security.insecure) }}yes{{ end }}{{- end -}}
{{- define "strata.tokenSecret" -}}
{{ .Values.security.tokens.existingSecret | default (printf "%s-tokens" (include "strata.fullname" .)) }}
{{- end -}}
{{- define "strata.storageSecret" -}}
{{- if .Values.storage.credentials.existingSecret -}}
{{ .Values.storage.credentials.existingSecret }}
{{- else if .Values.storage.credentials.values -}}
{{ include "strata.fullname" . }}-storage
{{- end -}}
{{- end -}}
{{- define "strata.claim" -}}
{{ .Values.persistence.existingClaim | default (printf "%s-checkpoints" (include "strata.fullname" .)) }}
{{- end -}}

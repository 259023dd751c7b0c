{{/* What all pods have in common. An id that is null is left to the cluster, as OpenShift wants it. */}}
{{- define "strata.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ int . }}
{{- end }}
{{- with .Values.podSecurity.runAsGroup }}
runAsGroup: {{ int . }}
{{- end }}
{{- with .Values.podSecurity.fsGroup }}
fsGroup: {{ int . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "strata.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Placement, and how a pod is pulled: (list $ $.Values.coordinator "coordinator"). */}}
{{- define "strata.placement" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $part.topologySpread }}
{{- if .enabled }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .topologyKey }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "strata.selector" (list $root (index $ 2)) | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The priority class of a part: (list $ "worker" $.Values.workers.priorityClassName). */}}
{{- define "strata.priority" -}}
{{- $root := index . 0 -}}
{{- with index . 2 }}
priorityClassName: {{ . }}
{{- else }}
{{- if $root.Values.priorityClasses.create }}
priorityClassName: {{ include "strata.priorityClass" (list $root (index . 1)) }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The environment of a container: (list $text $user). A variable that the user sets is left to the user: Kubernetes would take
the last of two, and a server-side apply would refuse them.
*/}}
{{- define "strata.env" -}}
{{- $taken := dict -}}
{{- range index . 1 }}{{ $_ := set $taken .name true }}{{ end -}}
{{- range fromYamlArray (index . 0) }}
{{- if not (hasKey $taken .name) }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- with index . 1 }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Exit codes in the order that Kubernetes demands, each once. */}}
{{- define "strata.exitCodes" -}}
{{- $given := dict -}}
{{- range . }}{{ $_ := set $given (toString (int .)) true }}{{ end -}}
{{- $sorted := list -}}
{{- range untilStep 1 256 1 }}{{ if hasKey $given (toString .) }}{{ $sorted = append $sorted . }}{{ end }}{{ end -}}
{{- toJson $sorted -}}
{{- end -}}

{{/* The environment of a client of the coordinator: (list $ $hasToken); the mounts are those of strata.clientMounts. */}}
{{- define "strata.clientEnv" -}}
{{- $security := (index . 0).Values.security -}}
{{- if not $security.insecure }}
- {name: STRATA_TLS_CA, value: /etc/strata/ca/ca.crt}
{{- if $security.tls.mutual }}
- {name: STRATA_TLS_CERT, value: /etc/strata/ca/tls.crt}
- {name: STRATA_TLS_KEY, value: /etc/strata/ca/tls.key}
{{- end }}
{{- if index . 1 }}
- {name: STRATA_TOKEN_FILE, value: /etc/strata/token/token}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list $ $hasToken) */}}
{{- define "strata.clientMounts" -}}
{{- if not (index . 0).Values.security.insecure }}
- {name: ca, mountPath: /etc/strata/ca, readOnly: true}
{{- if index . 1 }}
- {name: token, mountPath: /etc/strata/token, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The volumes of a client: (list $ $key $isProjected), the key of its token, or whether it is that of its service account.
Without a key it has no token.
*/}}
{{- define "strata.clientVolumes" -}}
{{- $root := index . 0 -}}{{- $security := $root.Values.security -}}
{{- if not $security.insecure }}
- name: ca
  {{- if include "strata.isMutual" $root }}
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "strata.tlsSecret" $root }}
          items:
            - {key: ca.crt, path: ca.crt}
      - secret:
          name: {{ include "strata.clientSecret" $root }}
          items:
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
  {{- else }}
  secret:
    secretName: {{ include "strata.tlsSecret" $root }}
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.crt}
  {{- end }}
{{- if or (index . 1) (index . 2) }}
- name: token
  {{- if index . 2 }}
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ $security.oidc.audience }}
          expirationSeconds: {{ int $security.oidc.expirationSeconds }}
  {{- else }}
  secret:
    secretName: {{ include "strata.tokenSecret" $root }}
    defaultMode: 0440
    items:
      - {key: {{ index . 1 | quote }}, path: token}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

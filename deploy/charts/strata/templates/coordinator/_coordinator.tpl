{{/* The coordinator's pod, the same in a StatefulSet and in a Deployment. */}}
{{- define "strata.coordinatorPod" -}}
metadata:
  labels: {{ include "strata.selector" (list . "coordinator") | nindent 4 }}
    {{- with .Values.coordinator.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.coordinator.podAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "strata.coordinatorAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int .Values.coordinator.terminationGracePeriodSeconds }}
  {{- include "strata.priority" (list . "coordinator" .Values.coordinator.priorityClassName) | indent 2 }}
  {{- include "strata.placement" (list . .Values.coordinator "coordinator") | indent 2 }}
  securityContext: {{ include "strata.podSecurity" . | nindent 4 }}
  containers:
    - name: coordinator
      image: {{ include "strata.coordinatorImage" . }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      command: [strata, coordinator]
      args: {{ include "strata.coordinatorArgs" . | nindent 8 }}
      env: {{ include "strata.env" (list (include "strata.coordinatorEnv" .) .Values.coordinator.env) | nindent 8 }}
      ports:
        - {name: grpc, containerPort: 50051}
        - {name: channel, containerPort: 50052}
        - {name: http, containerPort: 8080}
      startupProbe:
        {{- include "strata.probe" (list . "health") | nindent 8 }}
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        {{- include "strata.probe" (list . "health") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        {{- include "strata.probe" (list . "ready") | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 5
      {{- with int .Values.coordinator.preStopSeconds }}
      lifecycle:
        preStop:
          sleep: {seconds: {{ . }}}
      {{- end }}
      resources: {{ toYaml .Values.coordinator.resources | nindent 8 }}
      securityContext: {{ include "strata.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if not (include "strata.isEtcd" .) }}
        - {name: journal, mountPath: /var/lib/strata}
        {{- end }}
        {{- if not .Values.security.insecure }}
        - {name: tls, mountPath: /etc/strata/tls, readOnly: true}
        - {name: tokens, mountPath: /etc/strata/tokens, readOnly: true}
        {{- end }}
        {{- if include "strata.isMutual" . }}
        - {name: client, mountPath: /etc/strata/client, readOnly: true}
        {{- end }}
        {{- if include "strata.etcdSecret" . }}
        - {name: etcd, mountPath: /etc/strata/etcd, readOnly: true}
        {{- end }}
        {{- if include "strata.asksCluster" . }}
        - {name: issuer, mountPath: /etc/strata/issuer, readOnly: true}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- if not .Values.security.insecure }}
    - name: tls
      secret: {secretName: {{ include "strata.tlsSecret" . }}, defaultMode: 0440}
    - name: tokens
      secret:
        secretName: {{ include "strata.tokenSecret" . }}
        defaultMode: 0440
        items:
          - {key: admin-token, path: admin-token}
    {{- end }}
    {{- if include "strata.isMutual" . }}
    # ca.crt is the authority of clients; the pair is for commands that are run in this pod.
    - name: client
      secret: {secretName: {{ include "strata.clientSecret" . }}, defaultMode: 0440}
    {{- end }}
    {{- with include "strata.etcdSecret" . }}
    - name: etcd
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if include "strata.asksCluster" . }}
    - name: issuer
      projected:
        defaultMode: 0440
        sources:
          - serviceAccountToken: {path: token}
          - configMap:
              name: kube-root-ca.crt
              items:
                - {key: ca.crt, path: ca.crt}
    {{- end }}
{{- end -}}

{{/* The Secret with which etcd is reached; empty where it is reached without TLS, or where there is none. */}}
{{- define "strata.etcdSecret" -}}
{{- if include "strata.isEtcd" . }}{{ .Values.coordinator.journal.etcd.tlsSecret }}{{ end }}
{{- end -}}

{{/* Whether the API server is asked for the keys with which workers' tokens are signed. */}}
{{- define "strata.asksCluster" -}}
{{- $security := .Values.security -}}
{{- if and (not $security.insecure) (eq $security.tokens.workers "projected") $security.oidc.inCluster }}yes{{ end }}
{{- end -}}

{{/* Only the workers' own service account gets in, and as a worker. */}}
{{- define "strata.oidcRules" -}}
{{- $subject := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "strata.workerAccount" .) -}}
{{- $rule := dict "claim" "sub" "matches" $subject "role" "worker" -}}
{{- with .Values.security.oidc.tenant }}{{ $_ := set $rule "tenant" . }}{{ end -}}
{{- toJson (list $rule) -}}
{{- end -}}

{{- define "strata.coordinatorArgs" -}}
{{- $coordinator := .Values.coordinator -}}
- "--listen={{ $coordinator.listen }}"
{{- if include "strata.isEtcd" . }}
- --state={{ ternary "etcds" "etcd" (ne (include "strata.etcdSecret" .) "") }}://{{ join "," $coordinator.journal.etcd.endpoints }}/{{ $coordinator.journal.etcd.prefix }}
# Who is not the leader sends clients to the one who is.
{{- $pod := ternary "[$(POD_IP)]" "$(POD_IP)" (contains ":" $coordinator.listen) }}
- "--advertise-grpc={{ $pod }}:50051"
- "--advertise-channel={{ $pod }}:50052"
- "--advertise-http={{ $pod }}:8080"
{{- else }}
- --state=sqlite:///var/lib/strata/journal.db
- --advertise-channel={{ include "strata.coordinator" . }}.{{ .Release.Namespace }}.svc:{{ $coordinator.service.channelPort }}
{{- end }}
- --lease={{ $coordinator.lease }}
- --grace={{ $coordinator.grace }}
- --log-json
- --log-level={{ $coordinator.logLevel }}
{{- if .Values.security.insecure }}
- --insecure
{{- end }}
{{- range $coordinator.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/*
How the kubelet asks: (list $ "health" or "ready"). Without TLS by gRPC. The kubelet's gRPC probes know no TLS, so with it
they go to the HTTP API; and they have no certificate of their own, so with mutual TLS only the port is tried.
*/}}
{{- define "strata.probe" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.security.insecure -}}
grpc:
  port: 50051
{{- else if $root.Values.security.tls.mutual -}}
tcpSocket:
  port: grpc
{{- else -}}
httpGet:
  path: /api/{{ index . 1 }}
  port: http
  scheme: HTTPS
{{- end }}
{{- end -}}

{{/* The variables of the coordinator. */}}
{{- define "strata.coordinatorEnv" -}}
- {name: HOME, value: /tmp}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if not .Values.security.insecure }}
- {name: STRATA_TLS_CERT, value: /etc/strata/tls/tls.crt}
- {name: STRATA_TLS_KEY, value: /etc/strata/tls/tls.key}
{{- if .Values.security.tls.mutual }}
- {name: STRATA_TLS_CLIENT_CA, value: /etc/strata/client/ca.crt}
{{- end }}
- {name: STRATA_ADMIN_TOKEN_FILE, value: /etc/strata/tokens/admin-token}
{{- if eq .Values.security.tokens.workers "projected" }}
- {name: STRATA_OIDC_ISSUER, value: {{ .Values.security.oidc.issuer | quote }}}
- {name: STRATA_OIDC_AUDIENCE, value: {{ .Values.security.oidc.audience | quote }}}
- {name: STRATA_OIDC_RULES, value: {{ include "strata.oidcRules" . | quote }}}
{{- if .Values.security.oidc.inCluster }}
- {name: STRATA_OIDC_JWKS_URL, value: "https://kubernetes.default.svc/openid/v1/jwks"}
- {name: STRATA_OIDC_CA, value: /etc/strata/issuer/ca.crt}
- {name: STRATA_OIDC_TOKEN_FILE, value: /etc/strata/issuer/token}
{{- end }}
{{- end }}
{{- end }}
{{- if include "strata.etcdSecret" . }}
- {name: STRATA_ETCD_CA, value: /etc/strata/etcd/ca.crt}
- {name: STRATA_ETCD_CERT, value: /etc/strata/etcd/tls.crt}
- {name: STRATA_ETCD_KEY, value: /etc/strata/etcd/tls.key}
{{- end }}
{{- end -}}

{{/* Every name under which the coordinator is reached, one a line. */}}
{{- define "strata.certificateNames" -}}
{{- $names := list "localhost" -}}
{{- range $service := list (include "strata.coordinator" .) (include "strata.replicas" .) -}}
{{- $space := $.Release.Namespace -}}
{{- range $suffix := list "" (printf ".%s" $space) (printf ".%s.svc" $space) (printf ".%s.svc.cluster.local" $space) -}}
{{- $names = append $names (printf "%s%s" $service $suffix) -}}
{{- end -}}
{{- end -}}
{{- $names = append $names (printf "*.%s.%s.svc" (include "strata.replicas" .) .Release.Namespace) -}}
{{- $names = append $names (printf "*.%s.%s.svc.cluster.local" (include "strata.replicas" .) .Release.Namespace) -}}
{{- toJson (concat $names .Values.security.tls.extraNames) -}}
{{- end -}}

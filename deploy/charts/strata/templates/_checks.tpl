{{/* What a schema cannot say: values that do not fit each other, each refused with what to do. */}}
{{- define "strata.check" -}}
{{- $coordinator := .Values.coordinator -}}
{{- if and (eq $coordinator.journal.backend "sqlite") (gt (int $coordinator.replicaCount) 1) -}}
{{- fail (printf "coordinator.replicaCount is %d, but two coordinators cannot share a SQLite journal: set coordinator.journal.backend=etcd, or coordinator.replicaCount=1" (int $coordinator.replicaCount)) -}}
{{- end -}}
{{- if and (eq $coordinator.journal.backend "etcd") (not $coordinator.journal.etcd.endpoints) -}}
{{- fail "coordinator.journal.backend is etcd, but coordinator.journal.etcd.endpoints is empty: name the host:port of each etcd node" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "strata.fullname" .)) -}}
{{- fail (printf "%s cannot be part of a Service's name, which has lower-case letters, digits and hyphens and begins with a letter: set fullnameOverride" (include "strata.fullname" .)) -}}
{{- end -}}
{{- if not (regexMatch "^(|[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)$" .Values.nameOverride) -}}
{{- fail (printf "nameOverride %q cannot be the value of a label: use letters, digits and hyphens" .Values.nameOverride) -}}
{{- end -}}
{{- if and .Values.dashboard.ingress.enabled (not (regexMatch "^(\\*\\.)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$" .Values.dashboard.ingress.host)) -}}
{{- fail (printf "dashboard.ingress.host %q is not a host name: use one such as strata.example.com, without scheme, port and path" .Values.dashboard.ingress.host) -}}
{{- end -}}
{{- if contains "@" (join "," $coordinator.journal.etcd.endpoints) -}}
{{- fail "coordinator.journal.etcd.endpoints has a user or password, which would be in plain text: use host:port, and STRATA_ETCD_USER and STRATA_ETCD_PASSWORD_FILE, or tlsSecret" -}}
{{- end -}}
{{- if contains "@" .Values.storage.s3.endpoint -}}
{{- fail "storage.s3.endpoint has credentials, which would be in plain text: use storage.credentials" -}}
{{- end -}}
{{- if ne .Values.workers.kind "Deployment" -}}
{{- $pod := printf "%s-worker-%d%s-%d" (include "strata.fullname" .) .Release.Revision (ternary "-worker-0" "" (eq .Values.workers.kind "JobSet")) (max 0 (sub (int .Values.workers.replicaCount) 1)) -}}
{{- if gt (len $pod) 63 -}}
{{- fail (printf "the last worker's pod would be named %s, which has %d characters; Kubernetes allows 63: set a shorter fullnameOverride" $pod (len $pod)) -}}
{{- end -}}
{{- end -}}
{{- if gt (float64 $coordinator.grace) (float64 $coordinator.lease) -}}
{{- fail (printf "coordinator.grace (%v s) is longer than coordinator.lease (%v s): use at most the lease" $coordinator.grace $coordinator.lease) -}}
{{- end -}}
{{- if ge (int $coordinator.preStopSeconds) (int $coordinator.terminationGracePeriodSeconds) -}}
{{- fail (printf "coordinator.preStopSeconds (%d) leaves no time of coordinator.terminationGracePeriodSeconds (%d): the coordinator would be killed instead of drained" (int $coordinator.preStopSeconds) (int $coordinator.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{- $ports := list (int $coordinator.service.grpcPort) (int $coordinator.service.channelPort) (int $coordinator.service.httpPort) -}}
{{- if ne (len (uniq $ports)) 3 -}}
{{- fail (printf "coordinator.service has one port twice: grpcPort %d, channelPort %d, httpPort %d" (index $ports 0) (index $ports 1) (index $ports 2)) -}}
{{- end -}}
{{- range $part := list "coordinator" "workers" -}}
{{- $values := index $.Values $part -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey $values.podLabels $label -}}
{{- fail (printf "%s.podLabels has %s, by which the chart finds its pods: use another label" $part $label) -}}
{{- end -}}
{{- end -}}
{{- range $variable := $values.env -}}
{{- if and $variable.value (has $variable.name (list "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" "AZURE_STORAGE_ACCOUNT_KEY" "AZURE_STORAGE_SAS_TOKEN" "AZURE_CLIENT_SECRET" "STRATA_TOKEN")) -}}
{{- fail (printf "%s.env has the secret %s in plain text: put it into a Secret, and use storage.credentials.existingSecret or valueFrom.secretKeyRef" $part $variable.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $account := .Values.serviceAccount -}}
{{- if and $account.create $account.coordinatorName (eq $account.coordinatorName $account.workerName) -}}
{{- fail (printf "serviceAccount.coordinatorName and workerName are both %s: the coordinator must not have the workers' access to storage, so give them two names" $account.workerName) -}}
{{- end -}}
{{- if and (not $account.create) (or .Values.identity.aws.roleArn .Values.identity.gcp.serviceAccount) -}}
{{- fail "identity.aws and identity.gcp annotate the workers' ServiceAccount, but serviceAccount.create is false: annotate yours, or let the chart create it" -}}
{{- end -}}
{{- $bucket := dict "s3" .Values.storage.s3.bucket "gcs" .Values.storage.gcs.bucket "azure" .Values.storage.azure.container -}}
{{- if and (hasKey $bucket .Values.storage.backend) (not (get $bucket .Values.storage.backend)) -}}
{{- fail (printf "storage.backend is %s, but storage.%s.%s is empty: name where checkpoints go" .Values.storage.backend .Values.storage.backend (ternary "container" "bucket" (eq .Values.storage.backend "azure"))) -}}
{{- end -}}
{{- if and (eq .Values.storage.backend "local") (not .Values.persistence.enabled) -}}
{{- fail "storage.backend is local, but persistence.enabled is false: checkpoints would be lost with each pod. Enable persistence, or use an object store" -}}
{{- end -}}
{{- $most := ternary .Values.workers.autoscaling.maxReplicas .Values.workers.replicaCount .Values.workers.autoscaling.enabled -}}
{{- if and (eq .Values.storage.backend "local") (ne .Values.persistence.accessMode "ReadWriteMany") (gt (int $most) 1) (not .Values.persistence.existingClaim) -}}
{{- fail (printf "persistence.accessMode is %s, but %d workers write checkpoints: use ReadWriteMany, an object store, or one worker" .Values.persistence.accessMode (int $most)) -}}
{{- end -}}
{{- if and .Values.storage.credentials.existingSecret .Values.storage.credentials.values -}}
{{- fail "storage.credentials has both existingSecret and values: use one of them" -}}
{{- end -}}
{{- $tls := .Values.security.tls -}}
{{- if and (eq $tls.source "secret") (not $tls.secretName) (not .Values.security.insecure) -}}
{{- fail "security.tls.source is secret, but security.tls.secretName is empty: name the Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- range $name := list "secretName" "clientSecretName" -}}
{{- if and (get $tls $name) (ne $tls.source "secret") -}}
{{- fail (printf "security.tls.%s is set, but security.tls.source is %s: set it to secret" $name $tls.source) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $tls.source "secret") (include "strata.isMutual" .) -}}
{{- if not $tls.clientSecretName -}}
{{- fail "security.tls.mutual is true, but security.tls.clientSecretName is empty: name the Secret with tls.crt, tls.key and ca.crt of the clients" -}}
{{- end -}}
{{- if eq $tls.clientSecretName $tls.secretName -}}
{{- fail (printf "security.tls.secretName and clientSecretName are both %s, so clients would have the coordinator's key: name two Secrets" $tls.secretName) -}}
{{- end -}}
{{- end -}}
{{- $manager := $tls.certManager -}}
{{- if ge (int (trimSuffix "h" $manager.renewBefore)) (int (trimSuffix "h" $manager.duration)) -}}
{{- fail (printf "security.tls.certManager.renewBefore (%s) must be shorter than its duration (%s)" $manager.renewBefore $manager.duration) -}}
{{- end -}}
{{- $tokens := .Values.security.tokens -}}
{{- if not (or .Values.security.insecure $tokens.existingSecret) -}}
{{- range $name := list "workerKey" "dashboardKey" -}}
{{- if not (has (get $tokens $name) (list "" "admin-token")) -}}
{{- fail (printf "security.tokens.%s is %s, but the Secret that the chart makes has only admin-token: set security.tokens.existingSecret" $name (get $tokens $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.workers.autoscaling.enabled -}}
{{- if ne .Values.workers.kind "Deployment" -}}
{{- fail (printf "workers.autoscaling is for workers.kind=Deployment; a %s has a fixed number of workers" .Values.workers.kind) -}}
{{- end -}}
{{- if gt (int .Values.workers.autoscaling.minReplicas) (int .Values.workers.autoscaling.maxReplicas) -}}
{{- fail (printf "workers.autoscaling.minReplicas (%d) is above maxReplicas (%d)" (int .Values.workers.autoscaling.minReplicas) (int .Values.workers.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and (eq (int .Values.workers.autoscaling.targetCPUUtilizationPercentage) 0) (not .Values.workers.autoscaling.stepDuration.enabled) -}}
{{- fail "workers.autoscaling is enabled without a metric: set targetCPUUtilizationPercentage, or stepDuration.enabled=true" -}}
{{- end -}}
{{- if and (gt (int .Values.workers.autoscaling.targetCPUUtilizationPercentage) 0) (not (dig "requests" "cpu" (dig "limits" "cpu" "" .Values.workers.resources) .Values.workers.resources)) -}}
{{- fail "workers.autoscaling by CPU needs workers.resources.requests.cpu: utilization is a share of what is requested" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The worker's pod: the same in a Deployment, a Job and a JobSet, but for its name, its rank and its restarts. */}}
{{- define "strata.workerPod" -}}
{{- $isIndexed := ne .Values.workers.kind "Deployment" -}}
metadata:
  labels: {{ include "strata.selector" (list . "worker") | nindent 4 }}
    {{- if .Values.identity.azure.clientId }}
    azure.workload.identity/use: "true"
    {{- end }}
    {{- with .Values.workers.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.workers.podAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "strata.workerAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int .Values.workers.terminationGracePeriodSeconds }}
  {{- if $isIndexed }}
  restartPolicy: Never
  {{- end }}
  {{- include "strata.priority" (list . "worker" .Values.workers.priorityClassName) | indent 2 }}
  {{- include "strata.placement" (list . .Values.workers "worker") | indent 2 }}
  securityContext: {{ include "strata.podSecurity" . | nindent 4 }}
  containers:
    - name: worker
      image: {{ include "strata.workerImage" . }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      {{- with .Values.workers.command }}
      command: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.workers.args }}
      args: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- if and (eq .Values.workers.kind "JobSet") .Values.workers.jobSet.inPlaceExitCodes }}
      restartPolicy: Never
      restartPolicyRules:
        - action: Restart
          exitCodes:
            operator: In
            values: {{ include "strata.exitCodes" .Values.workers.jobSet.inPlaceExitCodes }}
      {{- end }}
      env: {{ include "strata.env" (list (include "strata.workerEnv" .) .Values.workers.env) | nindent 8 }}
      {{- $secret := include "strata.storageSecret" . }}
      {{- if or $secret .Values.workers.envFrom }}
      envFrom:
        {{- if $secret }}
        - secretRef: {name: {{ $secret }}}
        {{- end }}
        {{- with .Values.workers.envFrom }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      resources: {{ toYaml .Values.workers.resources | nindent 8 }}
      securityContext: {{ include "strata.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: cache, mountPath: /cache}
        - {name: shm, mountPath: /dev/shm}
        {{- if eq .Values.storage.backend "local" }}
        - {name: checkpoints, mountPath: /data/checkpoints}
        {{- end }}
        {{- include "strata.clientMounts" (list . true) | nindent 8 }}
        {{- with .Values.workers.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: cache
      emptyDir: {sizeLimit: {{ .Values.workers.dataCache }}}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.workers.sharedMemory }}}
    {{- if eq .Values.storage.backend "local" }}
    - name: checkpoints
      persistentVolumeClaim: {claimName: {{ include "strata.claim" . }}}
    {{- end }}
    {{- include "strata.clientVolumes" (list . .Values.security.tokens.workerKey (eq .Values.security.tokens.workers "projected")) | nindent 4 }}
    {{- with .Values.workers.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The variables of a worker. */}}
{{- define "strata.workerEnv" -}}
{{- $own := list -}}
{{- if ne .Values.workers.kind "Deployment" -}}
{{- $index := dict "fieldRef" (dict "fieldPath" "metadata.annotations['batch.kubernetes.io/job-completion-index']") -}}
{{- $own = append $own (dict "name" "RANK" "valueFrom" $index) -}}
{{- $own = append $own (dict "name" "WORKER_ID" "value" "worker-$(RANK)") -}}
{{- $own = append $own (dict "name" "WORLD_SIZE" "value" (toString .Values.workers.replicaCount)) -}}
{{- else -}}
{{- $own = append $own (dict "name" "WORKER_ID" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name"))) -}}
{{- end -}}
{{- $own = append $own (dict "name" "COORDINATOR_URL" "value" (include "strata.coordinatorUrl" .)) -}}
{{- $own = append $own (dict "name" "JOB_ID" "value" .Values.workers.jobId) -}}
{{- $own = append $own (dict "name" "STORAGE_BACKEND" "value" .Values.storage.backend) -}}
{{- if eq .Values.storage.backend "local" -}}
{{- $own = append $own (dict "name" "LOCAL_STORAGE_PATH" "value" "/data/checkpoints") -}}
{{- else -}}
{{- $bucket := dict "s3" .Values.storage.s3.bucket "gcs" .Values.storage.gcs.bucket "azure" .Values.storage.azure.container -}}
{{- $own = append $own (dict "name" "CHECKPOINT_BUCKET" "value" (get $bucket .Values.storage.backend)) -}}
{{- end -}}
{{- if eq .Values.storage.backend "s3" -}}
{{- with .Values.storage.s3.region }}{{ $own = append $own (dict "name" "AWS_REGION" "value" .) }}{{ end -}}
{{- with .Values.storage.s3.endpoint }}{{ $own = append $own (dict "name" "AWS_ENDPOINT_URL" "value" .) }}{{ end -}}
{{- end -}}
{{- if eq .Values.storage.backend "azure" -}}
{{- with .Values.storage.azure.account }}{{ $own = append $own (dict "name" "AZURE_STORAGE_ACCOUNT_NAME" "value" .) }}{{ end -}}
{{- end -}}
{{- $own = append $own (dict "name" "HOME" "value" "/tmp") -}}
{{- $own = append $own (dict "name" "JOBS_PATH" "value" "/tmp/jobs") -}}
{{- $own = append $own (dict "name" "DATA_CACHE_PATH" "value" "/cache") -}}
{{- range $own }}
- {{ toJson . }}
{{- end }}
{{- include "strata.clientEnv" (list . true) }}
{{- end -}}

{{/* The Job of the workers, the same alone and in a JobSet. */}}
{{- define "strata.workerJob" -}}
completionMode: Indexed
completions: {{ int .Values.workers.replicaCount }}
parallelism: {{ int .Values.workers.replicaCount }}
backoffLimitPerIndex: {{ int .Values.workers.job.backoffLimitPerIndex }}
# The training needs all of them: one that used up its restarts fails the Job.
maxFailedIndexes: 0
# A worker's name must be free before the next one takes it.
podReplacementPolicy: Failed
{{- if .Values.workers.job.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int .Values.workers.job.activeDeadlineSeconds }}
{{- end }}
podFailurePolicy:
  rules:
    # Evicted, preempted by the scheduler, or its node is drained: no fault of the training.
    - action: Ignore
      onPodConditions:
        - {type: DisruptionTarget, status: "True"}
    # 143: it was asked to stop, saved and left.
    - action: Ignore
      onExitCodes: {containerName: worker, operator: In, values: [143]}
    {{- with .Values.workers.job.fatalExitCodes }}
    # A restart cannot help.
    - action: FailJob
      onExitCodes: {containerName: worker, operator: In, values: {{ include "strata.exitCodes" . }}}
    {{- end }}
    # 87: it hung, and its watchdog killed it. A hang that comes back must end the Job in the end.
    - action: Count
      onExitCodes: {containerName: worker, operator: In, values: [87]}
template: {{ include "strata.workerPod" . | nindent 2 }}
{{- end -}}

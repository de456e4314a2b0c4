{{/* Names, labels and images that several templates share. */}}

{{- define "rstar2.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Full name: the release's, with the chart's where the release is called otherwise. */}}
{{- define "rstar2.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "rstar2.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "rstar2.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "rstar2.operator" -}}
{{ include "rstar2.fullname" . }}-operator
{{- end }}

{{- define "rstar2.mlflow" -}}
{{ include "rstar2.fullname" . }}-mlflow
{{- end }}

{{/* Labels of a component: include "rstar2.labels" (list . "operator") */}}
{{- define "rstar2.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{ include "rstar2.selector" . }}
{{- end }}

{{- define "rstar2.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "rstar2.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "rstar2.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "rstar2.operator" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the account to use when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Numbers of a values file are floats, which are printed as 1.2e+06 from a million on. */}}
{{- define "rstar2.gpuGroups" -}}
{{- range $index, $group := .Values.operator.gpuGroups }}{{ if $index }},{{ end }}{{ int64 $group }}{{ end }}
{{- end }}

{{/* What precedes an image's name: include "rstar2.prefix" . */}}
{{- define "rstar2.prefix" -}}
{{- with .Values.registryPrefix }}{{ trimSuffix "/" . }}/{{ end }}
{{- end }}

{{/* Additions to the pods of jobs, as JSON; empty if there are none. */}}
{{- define "rstar2.jobPods" -}}
{{- $patch := dict -}}
{{- range $field, $value := .Values.jobPods }}
{{- if $value }}
{{- $secrets := list }}
{{- if eq $field "imagePullSecrets" }}{{ range $value }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}{{ end }}
{{- $_ := set $patch $field (ternary $secrets $value (eq $field "imagePullSecrets")) }}
{{- end }}
{{- end }}
{{- if $patch }}{{ toJson $patch }}{{ end }}
{{- end }}

{{/* An image whose tag has a value of its own: include "rstar2.image" (list .Values.image "image" .Chart.AppVersion .).
A tag of digits alone arrives as a number, which is not printed as it was written (1.1e+11) in every case. */}}
{{- define "rstar2.image" -}}
{{- $image := index . 0 -}}
{{- if not (kindIs "string" $image.tag) }}
{{- fail (printf "%s.tag: is read as a number; quote it in a values file, or give it as --set-string %s.tag=..." (index . 1) (index . 1)) }}
{{- end }}
{{- include "rstar2.prefix" (index . 3) }}{{ printf "%s:%s" $image.repository (default (index . 2) $image.tag) }}
{{- end }}

{{/* Image of a job's role: include "rstar2.jobImage" (list . "trainer") */}}
{{- define "rstar2.jobImage" -}}
{{- $root := index . 0 -}}
{{- default (printf "ghcr.io/rstar2/%s:%s" (index . 1) $root.Chart.AppVersion) (index $root.Values.jobImages (index . 1)) }}
{{- end }}

{{/* What the restricted Pod Security level asks of every pod and container. */}}
{{- define "rstar2.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rstar2.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where jobs find MLflow. */}}
{{- define "rstar2.mlflowUri" -}}
{{- if .Values.operator.mlflowUri }}
{{- .Values.operator.mlflowUri }}
{{- else if .Values.mlflow.enabled }}
{{- printf "http://%s.%s.svc.%s:5000" (include "rstar2.mlflow" .) .Release.Namespace .Values.operator.clusterDomain }}
{{- end }}
{{- end }}

{{- define "rstar2.mlflowSecret" -}}
{{- default (include "rstar2.mlflow" .) .Values.mlflow.auth.existingSecret }}
{{- end }}

{{/* Annotations of an object of `helm test`: include "rstar2.testHook" "WEIGHT". */}}
{{- define "rstar2.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation
{{- end }}

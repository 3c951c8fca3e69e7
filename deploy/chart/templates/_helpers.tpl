{{- define "flowguard.name" -}}
{{ printf "%s-flowguard" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "flowguard.selector" -}}
app.kubernetes.io/name: flowguard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "flowguard.labels" -}}
{{ include "flowguard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
